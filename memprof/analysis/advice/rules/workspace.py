"""Scratch memory of library calls that is alive at the peak."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.what_if import Instead
from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report


def _propose(report: Report) -> tuple[Proposal, ...]:
    at_peak = [buffer for buffer in report.buffers if buffer.category is Category.WORKSPACE]
    if not at_peak:
        return ()
    largest = max(at_peak, key=lambda buffer: buffer.size_bytes)
    return (
        Proposal(
            what="Have XLA generate the kernels that ask for scratch memory now",
            evidence=f"library calls hold {sum(buffer.size_bytes for buffer in at_peak):,} bytes of scratch at the "
            f"peak, the largest for {largest.name}",
            cost="perhaps slower matrix products: measure",
            how_to='XLA_FLAGS="--xla_gpu_cublas_fallback=false"',
            without=_without,
            technique="xla:xla_gpu_cublas_fallback=false",
        ),
    )


def _without(buffer: LiveBuffer) -> Instead | None:
    return Instead(size_bytes=0) if buffer.category is Category.WORKSPACE else None


RULE = AdviceRule(name="workspace", propose=_propose)
