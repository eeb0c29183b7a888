"""Scratch memory of library calls that is alive at the peak."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak

HOW_TO = 'XLA_FLAGS="--xla_gpu_cublas_fallback=false"'
_OF_CUBLAS = "__cublas"  # how XLA's names of its matrix products begin (jaxlib 0.10.2 to 0.12)


# What XLA generates matrix products of. Complex products stay with the library, and asked for 33,554,432 bytes instead
# of 4,194,304 with the option (jax 0.10.2, H100).
_GENERATED = frozenset({"f16", "bf16", "f32"})
_LEAST_COMPUTE_CAPABILITY = (8, 0)  # below it XLA generates none: on a T4 the option leaves all scratch as it is


def _propose(report: Report) -> tuple[Proposal, ...]:
    if (report.target.cuda_capability or (0, 0)) < _LEAST_COMPUTE_CAPABILITY:
        return ()
    dtypes = {
        buffer.name: buffer.dtype
        for buffer in (*report.buffers, *report.temp_buffers)
        if buffer.category is not Category.WORKSPACE
    }

    def without(buffer: LiveBuffer) -> Instead | None:
        """Scratch of other libraries (convolutions, sorting) is not for this option to change."""
        is_scratch = buffer.category is Category.WORKSPACE and _OF_CUBLAS in buffer.evidence
        return Instead(size_bytes=0) if is_scratch and dtypes.get(buffer.name) in _GENERATED else None

    at_peak = changed_at_peak(report, without)
    if not at_peak:
        return ()
    return (
        Proposal(
            what="Have XLA generate the matrix products that ask for scratch memory now",
            evidence=f"{amount(at_peak, 'arrays')} at the peak, are scratch of matrix products by cuBLAS, the largest "
            f"for {at_peak[0].name}",
            cost="perhaps slower matrix products: measure",
            how_to=HOW_TO,
            without=without,
            technique="xla:xla_gpu_cublas_fallback=false",
        ),
    )


RULE = AdviceRule(name="workspace", propose=_propose)
