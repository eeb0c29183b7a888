"""Scratch memory of library calls that is alive at the peak."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.what_if import Instead, amount, changed_at_peak
from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report

HOW_TO = 'XLA_FLAGS="--xla_gpu_cublas_fallback=false"'
_OF_CUBLAS = "__cublas"  # how XLA's names of its matrix products begin (jaxlib 0.10.2 to 0.12)


def _propose(report: Report) -> tuple[Proposal, ...]:
    at_peak = changed_at_peak(report, _without)
    if not at_peak:
        return ()
    return (
        Proposal(
            what="Have XLA generate the matrix products that ask for scratch memory now",
            evidence=f"{amount(at_peak, 'arrays')} at the peak, are scratch of matrix products by cuBLAS, the largest "
            f"for {at_peak[0].name}",
            cost="perhaps slower matrix products: measure",
            how_to=HOW_TO,
            without=_without,
            technique="xla:xla_gpu_cublas_fallback=false",
        ),
    )


def _without(buffer: LiveBuffer) -> Instead | None:
    """Scratch of other libraries (convolutions, sorting) is not for this option to change."""
    is_scratch = buffer.category is Category.WORKSPACE and _OF_CUBLAS in buffer.evidence
    return Instead(size_bytes=0) if is_scratch else None


RULE = AdviceRule(name="workspace", propose=_propose)
