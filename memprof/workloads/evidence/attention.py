"""Fused attention: the kernel is there, and the probabilities are not."""

from __future__ import annotations

from memprof.analysis.categories import Phase, Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import no, used_arguments, yes
from memprof.workloads.technique import ArgumentValue

# XLA's names of cuDNN's kernels for both passes begin like this (jaxlib 0.10.2 to 0.12).
_KERNELS = "__cudnn$fmha"


def flash_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for calls of the kernels, and for the absence of a number for each pair of tokens at the peak."""
    del argument, reference
    num_calls = sum(number for name, number in report.program.library_calls.items() if name.startswith(_KERNELS))
    if not num_calls:
        return no("the program calls no fused attention")
    lengths = {leaf.shape[1] for leaf in used_arguments(report, Role.BATCH) if len(leaf.shape) > 1}
    square = [
        buffer
        for buffer in report.buffers
        if buffer.phase is not Phase.ARGUMENT and len(buffer.shape) == 4 and set(buffer.shape[-2:]) <= lengths
    ]
    if square:
        return no(
            f"the program calls fused attention, but {square[0].name} still holds a number for each pair of tokens"
        )
    return yes(f"{num_calls} calls of fused attention, and no value at the peak holds a number for each pair of tokens")
