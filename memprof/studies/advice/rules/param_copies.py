"""Copies of parameters, mostly casts to bfloat16, that are kept from the forward to the backward pass."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.what_if import Instead, amount


def _propose(report: Report) -> tuple[Proposal, ...]:
    at_peak = [buffer for buffer in report.buffers if buffer.category is Category.PARAM_COPIES]
    if len(at_peak) < 2:
        return ()
    # Layers take turns: one at a time still has its copy.
    largest = max(at_peak, key=lambda buffer: buffer.size_bytes)

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.category is not Category.PARAM_COPIES or (buffer.name, buffer.start) == (largest.name, largest.start):
            return None
        return Instead(size_bytes=0)

    return (
        Proposal(
            what="Cast weights inside each checkpointed layer, not before",
            evidence=f"{amount(at_peak, 'copies of parameters')}, are alive together at the peak",
            cost="the casts again, and what else the checkpointed layer computes",
            how_to="block = jax.checkpoint(lambda params, x: apply(jax.tree.map(to_bfloat16, params), x))",
            without=without,
        ),
    )


RULE = AdviceRule(name="param_copies", propose=_propose)
