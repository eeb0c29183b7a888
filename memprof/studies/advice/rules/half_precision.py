"""Activations in float32 that bfloat16 would hold in half the bytes."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.passing import MADE_IN_PASSES
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak


def _propose(report: Report) -> tuple[Proposal, ...]:
    wide = changed_at_peak(report, _without)
    if not any(buffer.category is Category.ACTIVATIONS for buffer in wide):
        return ()
    return (
        Proposal(
            what="Compute in bfloat16, with parameters and optimizer in float32",
            evidence=f"{amount(wide, 'arrays')} of the passes at the peak, are float32",
            cost="8 bits of mantissa in the passes; softmax, normalization and loss stay in float32",
            how_to="params, x = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (params, x))"
            "  # in the loss, floats alone; Flax: Model(dtype=jnp.bfloat16)",
            without=_without,
            technique="bf16",
        ),
    )


def _is_wide(buffer: LiveBuffer) -> bool:
    """Whether it would be half as large; the loss is computed in float32, and with it what its gradient begins with."""
    is_of_loss = buffer.category is Category.COTANGENTS and not buffer.module
    return buffer.dtype == "f32" and buffer.category in MADE_IN_PASSES and not is_of_loss


def _without(buffer: LiveBuffer) -> Instead | None:
    return Instead(size_bytes=buffer.size_bytes // 2) if _is_wide(buffer) else None


RULE = AdviceRule(name="half_precision", propose=_propose)
