"""Loops of the program: over minibatches, over layers, over chunks of the loss.

JAX names a loop by the scopes around it, and the compiler knows how often it runs.
"""

from __future__ import annotations

import re

from memprof.analysis.categories import Phase, Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Loop, Report
from memprof.workloads.evidence.reading import no, used_arguments, yes
from memprof.workloads.technique import ArgumentValue

_FORWARD = "forward"
_BACKWARD = "backward"


def accumulation_loop_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for a loop over that many minibatches."""
    del reference
    loops = [loop for loop in report.program.loops if "minibatches" in _scopes(loop)]
    outermost = [loop for loop in loops if _direction(loop) is None]
    counts = sorted({loop.trip_count or 0 for loop in outermost})
    if argument in counts and argument != 1:
        return yes(f"a loop runs {argument} times over forward and backward pass and adds up the gradients")
    if not counts:
        return no(f"there is no loop over minibatches where one of {argument} was expected")
    return no(f"the loop over minibatches runs {counts[0]} times where {argument} was expected, and more than once")


def unrolled_accumulation_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for a copy of the backward pass for each of that many minibatches."""
    del reference
    copies = {
        part
        for operations in report.program.operations
        if operations.phase is Phase.BACKWARD
        for part in operations.scope.split("/")
        if re.fullmatch(r"minibatches_[0-9]+", part)
    }
    if len(copies) == argument and argument != 1:
        return yes(f"the program holds {argument} copies of the backward pass, one for each minibatch")
    return no(f"the program holds {len(copies)} copies of the backward pass for minibatches; {argument} were expected")


def layer_loop_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for a loop over stacked parameters in the forward pass, and for one of the same length backwards."""
    del argument, reference
    depths = {leaf.shape[0] for leaf in used_arguments(report, Role.PARAMS) if "['layers']" in leaf.path and leaf.shape}
    if len(depths) != 1:
        return no("the program takes no parameters that are stacked over layers")
    (depth,) = depths
    forward, backward = _loops_through_layers(report, _FORWARD), _loops_through_layers(report, _BACKWARD)
    if depth in forward and depth in backward:
        return yes(f"a loop runs {depth} times over the layers in the forward pass, and one in the backward pass")
    return no(f"parameters of {depth} layers are stacked, but the loops over them run {forward} and {backward} times")


def chunked_loss_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for a loop over that many chunks in both passes, and for the absence of the full logits at the peak."""
    del reference
    counts = {
        direction: [
            loop.trip_count
            for loop in report.program.loops
            if "loss_chunks" in _scopes(loop) and _direction(loop) == direction
        ]
        for direction in (_FORWARD, _BACKWARD)
    }
    if argument == 1 or not all(argument in found for found in counts.values()):
        return no(f"there are no loops over {argument} chunks of the loss in forward and backward pass")
    largest = _largest_logits(report)
    if largest >= (full := _num_full_logits(report)):
        return no(f"there are loops over {argument} chunks of the loss, but a value at the peak holds {largest} logits")
    return yes(f"loops run {argument} times over chunks of the loss; no value at the peak holds all {full} logits")


def _loops_through_layers(report: Report, direction: str) -> list[int | None]:
    return [
        loop.trip_count
        for loop in report.program.loops
        if _direction(loop) == direction and "loss_chunks" not in _scopes(loop)
    ]


def _scopes(loop: Loop) -> list[str]:
    """The scopes in a loop's name: `jit(step)/transpose(jvp(Net))/while` has `step`, `transpose`, `jvp`, `Net`."""
    return re.split(r"[/()]+", loop.op)


def _direction(loop: Loop) -> str | None:
    """Which pass a loop belongs to; None where it holds both."""
    if "transpose(" in loop.op:
        return _BACKWARD
    return _FORWARD if "jvp(" in loop.op else None


def _num_full_logits(report: Report) -> int:
    """One logit for each label and word: the label array by the largest table that has a row for each word."""
    num_labels = max(
        (leaf.num_elements for leaf in used_arguments(report, Role.BATCH) if "labels" in leaf.path), default=0
    )
    tables = [leaf.shape[0] for leaf in used_arguments(report, Role.PARAMS) if "['token_embedding']" in leaf.path]
    return num_labels * max(tables, default=0)


def _largest_logits(report: Report) -> int:
    """Numbers in the largest value at the peak that has as many rows or columns as there are words."""
    full = _num_full_logits(report)
    sizes = []
    for buffer in report.buffers:
        num_elements = 1
        for size in buffer.shape:
            num_elements *= size
        if num_elements == full and "head" in buffer.op + buffer.module:
            sizes.append(num_elements)
    return max(sizes, default=0)
