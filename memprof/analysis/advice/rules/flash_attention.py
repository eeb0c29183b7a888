"""Attention that keeps what each position gives to each other one."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.passing import MADE_IN_PASSES, is_square
from memprof.analysis.advice.what_if import Instead
from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report


def _propose(report: Report) -> tuple[Proposal, ...]:
    kept = [
        buffer for buffer in report.temp_buffers if buffer.category is Category.ACTIVATIONS and is_square(buffer)
    ]  # fmt: skip
    if not kept:
        return ()
    size_bytes = sum(buffer.size_bytes for buffer in kept)
    length = kept[0].shape[-1]
    return (
        Proposal(
            what="Use an attention kernel that never holds the probabilities",
            evidence=f"{len(kept)} arrays of {length:,} by {length:,} positions, {size_bytes:,} bytes in all, are kept "
            "for the backward pass",
            cost="none in time, usually less; 16-bit inputs, and on NVIDIA's GPUs the cuDNN library",
            how_to='jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")',
            without=_without,
            technique="flash",
        ),
    )


def _without(buffer: LiveBuffer) -> Instead | None:
    return Instead(size_bytes=0) if buffer.category in MADE_IN_PASSES and is_square(buffer) else None


RULE = AdviceRule(name="flash_attention", propose=_propose)
