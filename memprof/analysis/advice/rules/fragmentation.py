"""Bytes of the temp block that hold nothing at the peak."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.residuals import repeated_modules
from memprof.analysis.categories import Category
from memprof.analysis.report import Report


def _propose(report: Report) -> tuple[Proposal, ...]:
    size_bytes = report.categories[Category.FRAGMENTATION]
    layers = [family for family in repeated_modules(report) if "/" not in family]
    if not (size_bytes and layers):
        return ()
    return (
        Proposal(
            what="Scan over equal layers: fewer arrays, of equal sizes, pack better",
            evidence=f"{size_bytes:,} bytes of the temp block hold nothing at the peak; {layers[0]} are not scanned",
            cost="stacked parameters; activations of all layers in one array each",
            how_to="x, _ = jax.lax.scan(lambda x, params: (block(params, x), None), x, stacked_params)",
            without=lambda buffer: None,
            is_packed=True,
            technique="scan",
        ),
    )


RULE = AdviceRule(name="fragmentation", propose=_propose)
