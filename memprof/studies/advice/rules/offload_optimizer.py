"""Optimizer state that waits through the forward and backward passes in device memory."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.optimizer import optimizer_state, with_optimizer_state_of
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak


def _propose(report: Report) -> tuple[Proposal, ...]:
    state_bytes = sum(buffer.size_bytes for buffer in optimizer_state(report))
    updates = [span for span in report.timeline.phases if span.phase is Phase.UPDATE]
    if not (state_bytes and updates) or report.target.platform != "cuda":
        return ()
    span = (min(span.start for span in updates), max(span.end for span in updates))

    nowhere = with_optimizer_state_of(report, 0)

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.category is Category.OPTIMIZER_STATE and buffer.held is None:
            return Instead(size_bytes=buffer.size_bytes, spans=[span])
        return nowhere(buffer)

    return (
        Proposal(
            what="Keep the optimizer state in host memory between updates",
            evidence=f"{amount(changed_at_peak(report, without), 'arrays')} of optimizer state and results that may be "
            "its next one, lie on the device throughout, and only the update uses them",
            cost=f"{2 * state_bytes:,} bytes over the bus in each step, as much host memory",
            how_to="gradients, state = jax.lax.optimization_barrier((gradients, state)); "
            "state = jax.device_put(state, jax.memory.Space.Device)"
            "  # it lies in jax.memory.Space.Host before and after",
            without=without,
            technique="offload-opt",
        ),
    )


RULE = AdviceRule(name="offload_optimizer", propose=_propose)
