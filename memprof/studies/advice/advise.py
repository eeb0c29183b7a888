"""From a report to advice: every rule is asked, and what it proposes is held against the timeline.

A rule is a function of a report. It yields what it would do about the peak, and nothing where the program does not have
what it looks for; its name stands in reports and JSON. The rules lie in files by idea: `state` is about what a step
holds for each parameter, `passes` about what it makes on its way, `recomputation` about what it need not keep, `meshes`
about what the devices of a mesh have alike, `order` about when operations run, `inference` about steps that train
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Advice, Proposal
from memprof.studies.advice.inference import (
    copied_cache,
    copied_weights,
    relaid_cache,
    whole_prompt_logits,
    wide_weights,
)
from memprof.studies.advice.meshes import (
    gather_in_chunks,
    gathered_batch,
    replicated_state,
    undivided_batch,
    undivided_logits,
)
from memprof.studies.advice.order import other_order
from memprof.studies.advice.passes import (
    chunked_loss,
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
from memprof.studies.advice.what_if import footprint_without

SMALLEST_SHARE = 0.02  # of the footprint: what saves less is not worth a change to the code

# Of two that save the same, the first here comes first.
RULES: tuple[Callable[[Report], Iterable[Proposal]], ...] = (
    chunked_loss,
    copied_cache,
    copied_weights,
    donate_state,
    factored_optimizer,
    flash_attention,
    fragmentation,
    gather_in_chunks,
    gathered_batch,
    half_precision,
    huge_buffer,
    narrow_accumulators,
    offload_optimizer,
    other_order,
    param_copies,
    relaid_cache,
    remat_elementwise,
    remat_modules,
    remat_scan,
    replicated_state,
    undivided_batch,
    undivided_logits,
    update_peak,
    whole_prompt_logits,
    wide_weights,
    workspace,
)


def advise(report: Report) -> tuple[Advice, ...]:
    """What could be done about a peak, what saves most first; empty if nothing would save a share worth having.

    If XLA recomputes values under memory pressure, the advice is that of the plan without pressure. A trace of PyTorch
    gets none: the rules look for what XLA does, and name changes of JAX code.
    """
    if report.framework != "jax":
        return ()
    report = report.unpressed
    found = [
        Advice(
            rule=rule.__name__,
            proposal=proposal,
            saving_bytes=_saving_bytes(report, proposal),
        )
        for rule in RULES
        for proposal in rule(report)
    ]
    worthwhile = [advice for advice in found if advice.saving_bytes > SMALLEST_SHARE * report.footprint_bytes]
    return tuple(sorted(worthwhile, key=lambda advice: -advice.saving_bytes))


def _saving_bytes(report: Report, proposal: Proposal) -> int:
    if proposal.live_peak_bytes is not None:
        return report.live_peak_bytes - proposal.live_peak_bytes
    return report.footprint_bytes - footprint_without(report, proposal.without, is_packed=proposal.is_packed)
