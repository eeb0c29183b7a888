"""Give advice on a report: ask every rule, and test its proposals against the timeline.

A rule is a function that yields proposals for a report. Its name appears in reports and in the JSON. Each file holds
the rules on one subject:

    state          the state of each parameter: the parameter, its gradient, its optimizer state
    passes         values of the forward and backward passes
    recomputation  values that the step could recompute
    meshes         values that the devices of a mesh have in common
    order          the order of operations
    logits         the widest arrays of a language model
    weights        weights of steps that train nothing
    caches         caches of steps that train nothing
    layout         the layout of arrays in memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Advice, Proposal, ranked
from memprof.studies.advice.caches import (
    copied_cache,
    growing_cache,
    long_cache,
    relaid_cache,
    repeated_heads,
    wide_cache,
)
from memprof.studies.advice.layout import padded_axes
from memprof.studies.advice.logits import chunked_loss, whole_prompt_logits
from memprof.studies.advice.meshes import (
    gather_in_chunks,
    gathered_batch,
    replicated_state,
    undivided_batch,
    undivided_logits,
)
from memprof.studies.advice.order import other_order
from memprof.studies.advice.passes import (
    flash_attention,
    fragmentation,
    half_precision,
    huge_buffer,
    workspace,
)
from memprof.studies.advice.recomputation import remat_elementwise, remat_modules, remat_scan
from memprof.studies.advice.state import (
    donate_state,
    factored_optimizer,
    narrow_accumulators,
    offload_optimizer,
    param_copies,
    update_peak,
)
from memprof.studies.advice.weights import copied_weights, dequantised_weights, wide_weights
from memprof.studies.advice.what_if import footprint_without
from memprof.workloads.intents import Aim

SMALLEST_SHARE = 0.02  # of the footprint: a smaller saving is not worth a change to the code

# Equal upper bounds keep this order.
RULES: tuple[Callable[[Report], Iterable[Proposal]], ...] = (
    chunked_loss,
    copied_cache,
    copied_weights,
    dequantised_weights,
    donate_state,
    factored_optimizer,
    flash_attention,
    fragmentation,
    gather_in_chunks,
    gathered_batch,
    growing_cache,
    half_precision,
    huge_buffer,
    long_cache,
    narrow_accumulators,
    offload_optimizer,
    other_order,
    padded_axes,
    param_copies,
    relaid_cache,
    remat_elementwise,
    remat_modules,
    remat_scan,
    repeated_heads,
    replicated_state,
    undivided_batch,
    undivided_logits,
    update_peak,
    whole_prompt_logits,
    wide_cache,
    wide_weights,
    workspace,
)


_OF_LOGITS = frozenset({Aim.CHUNK_LOSS, Aim.KEEP_LAST_LOGITS})
_OF_PASSES = frozenset({Aim.ACCUMULATE_GRADIENTS, Aim.CHUNK_ATTENTION, Aim.FUSE_ATTENTION}) | _OF_LOGITS


def advise(report: Report, compiled: Sequence[Advice] = ()) -> tuple[Advice, ...]:
    """Return advice on a report: compiled savings first, then upper bounds.

    If a rule's change was compiled, its upper bound is left out, even if the compiled saving is too small to show. If
    XLA recomputes values under memory pressure, the advice is for the plan without pressure.

    Args:
        compiled: compiled changes of the step, with their true savings (see `known.py`).
    """
    least = SMALLEST_SHARE * report.unpressed.footprint_bytes
    worthwhile = [each for each in compiled if each.saving_bytes > least]
    best = [each for place, each in enumerate(worthwhile) if not _is_beaten(each, worthwhile[:place], worthwhile)]
    rules = {each.rule for each in compiled}
    aims = {each.proposal.intent.aim for each in compiled}
    if not aims.isdisjoint(_OF_LOGITS):
        aims.add(Aim.CHUNK_ARRAY)
    recomputes = any(aim.recomputes for aim in aims)
    bounds = [
        each
        for each in upper_bounds(report)
        if each.rule not in rules
        and each.proposal.intent.aim not in aims
        and not (recomputes and each.proposal.intent.aim.recomputes)
    ]
    return ranked((*best, *bounds))


def without_saving(report: Report, compiled: Sequence[Advice]) -> tuple[Advice, ...]:
    """Return the compiled changes of the passes that save too little to show, because other arrays make the peak."""
    least = SMALLEST_SHARE * report.unpressed.footprint_bytes
    return tuple(each for each in compiled if each.saving_bytes <= least and each.proposal.intent.aim in _OF_PASSES)


def _is_beaten(advice: Advice, before: Sequence[Advice], others: Sequence[Advice]) -> bool:
    """Whether another recomputation saves as much at the same or a lower cost; the first of equal ones is kept."""
    mine = _worth(advice)
    return mine is not None and any(
        theirs[0] >= mine[0] and theirs[1] <= mine[1] and (theirs != mine or other in before)
        for other in others
        if (theirs := _worth(other)) is not None
    )


def _worth(advice: Advice) -> tuple[int, int] | None:
    """Return the saving and the FLOPs of a recomputation; None for other advice."""
    if advice.compiled is None or not advice.proposal.intent.aim.recomputes:
        return None
    return advice.compiled.saving_bytes, advice.compiled.recomputed_flops


def upper_bounds(report: Report) -> tuple[Advice, ...]:
    """Return the proposals of the rules with their upper bounds, largest first."""
    report = report.unpressed
    if report.engine_figures is not None or report.framework != "jax":  # the rules read XLA's programs
        return ()
    least = SMALLEST_SHARE * report.footprint_bytes
    return ranked(
        Advice(rule=rule.__name__, proposal=proposal, bound_bytes=bound_bytes(report, proposal))
        for rule in RULES
        for proposal in rule(report)
        if predicted_saving(report, proposal) > least
    )


def predicted_saving(report: Report, proposal: Proposal) -> int:
    """Return the saving according to the timeline, replayed with the changed buffers."""
    if proposal.live_peak_bytes is not None:
        return report.live_peak_bytes - proposal.live_peak_bytes
    return report.footprint_bytes - footprint_without(report, proposal.without, is_packed=proposal.is_packed)


def bound_bytes(report: Report, proposal: Proposal) -> int:
    """Return the upper bound of a saving: all bytes that the proposal removes from the peak, or `at_most_bytes`."""
    gone = sum(
        buffer.size_bytes - (instead.size_bytes if instead.spans is None else 0)
        for buffer in report.buffers
        if (instead := proposal.without(buffer)) is not None
    )
    return max(gone, proposal.at_most_bytes, predicted_saving(report, proposal))
