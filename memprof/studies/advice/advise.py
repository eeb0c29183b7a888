"""From a report to advice: every rule is asked, and its proposal is held against the timeline.

A rule is a function of a report. It yields what it would do about the peak, and nothing where the program does not have
what it looks for; its name stands in reports and JSON. The rules lie in files by idea: `state` is about what a step
holds for each parameter, `passes` about what it makes on its way, `recomputation` about what it need not keep, `meshes`
about what the devices of a mesh have alike, `order` about when operations run, `layout` about how arrays are stored,
`logits` about the widest arrays of a language model, `weights` and `caches` about steps that train nothing.
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

SMALLEST_SHARE = 0.02  # of the footprint: what saves less is not worth a change to the code

# Of two that save the same, the first here comes first.
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


def advise(report: Report, compiled: Sequence[Advice] = ()) -> tuple[Advice, ...]:
    """What could be done about a peak: compiled savings first, then upper bounds.

    A rule whose change was compiled has no bound beside it, be it that the change saves too little. If XLA recomputes
    values under memory pressure, the advice is that of the plan without pressure.

    Args:
        compiled: changes that were made to the step, with their true savings (see `known.py`).
    """
    least = SMALLEST_SHARE * report.unpressed.footprint_bytes
    worthwhile = [each for each in compiled if each.saving_bytes > least]
    best = [each for place, each in enumerate(worthwhile) if not _is_beaten(each, worthwhile[:place], worthwhile)]
    rules = {each.rule for each in compiled}
    aims = {each.proposal.intent.aim for each in compiled}
    if Aim.CHUNK_LOSS in aims:
        aims.add(Aim.CHUNK_ARRAY)  # of the logits
    recomputes = any(aim.recomputes for aim in aims)
    bounds = [
        each
        for each in upper_bounds(report)
        if each.rule not in rules
        and each.proposal.intent.aim not in aims
        and not (recomputes and each.proposal.intent.aim.recomputes)
    ]
    return ranked((*best, *bounds))


def _is_beaten(advice: Advice, before: Sequence[Advice], others: Sequence[Advice]) -> bool:
    """Whether another way to recompute saves as much for as little, the first of equal ones excepted."""
    mine = _worth(advice)
    return mine is not None and any(
        theirs[0] >= mine[0] and theirs[1] <= mine[1] and (theirs != mine or other in before)
        for other in others
        if (theirs := _worth(other)) is not None
    )


def _worth(advice: Advice) -> tuple[int, int] | None:
    """The saving of a way to recompute, and its operations; None: it recomputes nothing."""
    if advice.compiled is None or not advice.proposal.intent.aim.recomputes:
        return None
    return advice.compiled.saving_bytes, advice.compiled.recomputed_flops


def upper_bounds(report: Report) -> tuple[Advice, ...]:
    """What the rules propose, each with the most that it could save; the largest predicted saving first."""
    report = report.unpressed
    if report.engine_figures is not None or report.framework != "jax":  # the rules read XLA's programs
        return ()
    found = [
        (predicted_saving(report, proposal), rule.__name__, proposal) for rule in RULES for proposal in rule(report)
    ]
    worthwhile = [each for each in found if each[0] > SMALLEST_SHARE * report.footprint_bytes]
    return tuple(
        Advice(rule=rule, proposal=proposal, bound_bytes=bound_bytes(report, proposal))
        for _, rule, proposal in sorted(worthwhile, key=lambda each: -each[0])
    )


def predicted_saving(report: Report, proposal: Proposal) -> int:
    """By how much the footprint would be lower if the timeline were played again with other buffers."""
    if proposal.live_peak_bytes is not None:
        return report.live_peak_bytes - proposal.live_peak_bytes
    return report.footprint_bytes - footprint_without(report, proposal.without, is_packed=proposal.is_packed)


def bound_bytes(report: Report, proposal: Proposal) -> int:
    """The most that a proposal could save: all that it takes away from what is live at the peak, or more."""
    gone = sum(
        buffer.size_bytes - (instead.size_bytes if instead.spans is None else 0)
        for buffer in report.buffers
        if (instead := proposal.without(buffer)) is not None
    )
    return max(gone, proposal.at_most_bytes, predicted_saving(report, proposal))
