"""Accumulators of gradients in float32, alive while minibatches are worked on."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak


def _propose(report: Report) -> tuple[Proposal, ...]:
    gradients = [buffer for buffer in report.temp_buffers if _is_wide_gradient(buffer)]
    of_passes = (buffer for buffer in report.temp_buffers if buffer.category is not Category.GRADIENTS)
    last_forward = max((buffer.start for buffer in of_passes if buffer.phase is Phase.FORWARD), default=-1)
    # Gradients of one batch are born after its forward pass: what is there before adds up several.
    accumulators = [buffer for buffer in gradients if buffer.start < last_forward <= buffer.end]
    if not accumulators:
        return ()
    additions = {buffer.op for buffer in accumulators}

    def without(buffer: LiveBuffer) -> Instead | None:
        is_accumulator = _is_wide_gradient(buffer) and buffer.op in additions
        return Instead(size_bytes=buffer.size_bytes // 2) if is_accumulator else None

    changed = changed_at_peak(report, without)
    return (
        Proposal(
            what="Accumulate gradients in bfloat16",
            evidence=f"{amount(changed, 'accumulators')} at the peak, are float32 and alive during the passes",
            cost="sums of minibatches are rounded to 8 bits of mantissa",
            how_to="zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params); "
            "add = lambda total, gradients: jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, gradients)",
            without=without,
        ),
    )


def _is_wide_gradient(buffer: LiveBuffer) -> bool:
    return buffer.category is Category.GRADIENTS and buffer.dtype == "f32" and buffer.held is not None


RULE = AdviceRule(name="narrow_accumulators", propose=_propose)
