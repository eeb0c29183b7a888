"""Activations that take no matrix product to compute again: the cheapest rung of recomputation."""

from __future__ import annotations

from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.residuals import matrices_by_module, repeated_modules, without_residuals
from memprof.studies.advice.what_if import amount, changed_at_peak

_PRODUCTS = ("dot_general", "conv_general_dilated")


def _propose(report: Report) -> tuple[Proposal, ...]:
    outermost = [paths for family, paths in repeated_modules(report).items() if "/" not in family]
    if not outermost:
        return ()
    with_matrices = {module for module, found in matrices_by_module(report).items() if found}

    def is_product(buffer: LiveBuffer) -> bool:
        """A product with weights, whose bias or cast may be fused into it; products of attention are not kept."""
        if buffer.is_of_attention:
            return False
        return buffer.module in with_matrices or buffer.op.endswith(_PRODUCTS)

    paths = [path for found in outermost for path in found]
    without = without_residuals(report, paths, keep=is_product)
    cheap = changed_at_peak(report, without)
    return (
        Proposal(
            what="Keep results of matrix products alone, and recompute the rest",
            evidence=f"{amount(cheap, 'activations')} at the peak, come from other operations",
            cost="elementwise operations again, and the products of attention",
            how_to="block = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)",
            without=without,
            technique="remat-dots",
        ),
    )


RULE = AdviceRule(name="remat_elementwise", propose=_propose)
