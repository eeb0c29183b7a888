"""Attention that keeps what each query gives to each key."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.passing import MADE_IN_PASSES, made_at
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak

_HALF = ("bf16", "f16")
_LEAST_COMPUTE_CAPABILITY = (8, 0)  # of cuDNN's kernel
CUDNN = 'attended = jax.nn.dot_product_attention(q, k, v, implementation="cudnn")  # is_causal=True, if it is'
CUDNN_OF_FLOAT32 = (
    "attended = jax.nn.dot_product_attention(*(a.astype(jnp.bfloat16) for a in (q, k, v)),"
    ' implementation="cudnn")  # is_causal=True, if it is'
)
BLOCKS = "attended = jax.lax.map(jax.checkpoint(lambda queries: attend(queries, k, v)), blocks_of_q)"


def _propose(report: Report) -> tuple[Proposal, ...]:
    """The arrays are told by data flow, see `attentions.py`: an array is not one of these for being square."""
    changed = changed_at_peak(report, _without)
    if not any(buffer.category is Category.ACTIVATIONS for buffer in changed):
        return ()
    evidence = (
        f"{amount(changed, 'arrays')} at the peak, hold a number for each query and key of an attention, the largest"
        f" made at {made_at(changed[0])}"
    )
    if (report.target.cuda_capability or (0, 0)) < _LEAST_COMPUTE_CAPABILITY:
        return (
            Proposal(
                what="Attend with a block of queries at a time, and compute its probabilities again",
                evidence=evidence,
                cost="the products of queries and keys again, in a loop",
                how_to=BLOCKS,
                without=_without,
            ),
        )
    is_half = any(buffer.dtype in _HALF for buffer in changed)
    return (
        Proposal(
            what="Use an attention kernel that never holds the probabilities",
            evidence=evidence,
            cost="none in time, usually less; 16-bit inputs, and on NVIDIA's GPUs the cuDNN library",
            how_to=CUDNN if is_half else CUDNN_OF_FLOAT32,
            without=_without,
            technique="flash",
        ),
    )


def _without(buffer: LiveBuffer) -> Instead | None:
    is_held = buffer.is_of_attention and buffer.category in MADE_IN_PASSES
    return Instead(size_bytes=0) if is_held else None


RULE = AdviceRule(name="flash_attention", propose=_propose)
