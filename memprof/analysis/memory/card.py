"""Verdicts for PyTorch and inference engines, which have no pool of a fixed size: does their memory fit a card?"""

from __future__ import annotations

from memprof.amounts import format_bytes
from memprof.analysis.memory.verdict import outside_pool
from memprof.analysis.records.capture import Target
from memprof.analysis.records.pool import Answer, Verdict


def judge_reserved(reserved_bytes: int, target: Target) -> Verdict:
    """Judge whether a PyTorch step fits.

    Args:
        reserved_bytes: the memory that the caching allocator reserves.
        target: the device. The CUDA context and the libraries' handles lie outside the allocator (`outside_pool`).
    """
    return _judge(reserved_bytes, target, f"{format_bytes(reserved_bytes)} reserved")


def judge_engine(footprint_bytes: int, target: Target) -> Verdict:
    """Judge whether an engine with its inputs and outputs fits."""
    return _judge(footprint_bytes, target, format_bytes(footprint_bytes))


def _judge(needed_bytes: int, target: Target, needed: str) -> Verdict:
    if target.memory_bytes is None:
        return Verdict(
            answer=Answer.UNKNOWN,
            pool_bytes=None,
            mem_fraction=None,
            short_bytes=0,
            sentence=f"{needed}; {target.name} has no fixed amount of memory",
        )
    outside_bytes = sum(each.size_bytes or 0 for each in outside_pool(target))
    capacity = max(target.memory_bytes - outside_bytes, 0)
    where = f"the {format_bytes(capacity)} that {target.name} has beside the CUDA context"
    short_bytes = max(needed_bytes - capacity, 0)
    if short_bytes:
        answer, sentence = (
            Answer.DOES_NOT_FIT,
            f"does not fit: {needed}, {format_bytes(short_bytes)} more than {where}",
        )
    else:
        answer, sentence = (
            Answer.FITS,
            f"fits: {needed} of {where}, {format_bytes(capacity - needed_bytes)} to spare",
        )
    return Verdict(answer=answer, pool_bytes=capacity, mem_fraction=None, short_bytes=short_bytes, sentence=sentence)
