"""One array that makes the peak, with the line that makes it."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.logits import is_logits, num_classes
from memprof.analysis.advice.passing import MADE_IN_PASSES, is_square, made_at
from memprof.analysis.advice.what_if import Instead
from memprof.analysis.report import LiveBuffer, Report

_HUGE = 0.2  # of the footprint
_PIECES = 32


def _propose(report: Report) -> tuple[Proposal, ...]:
    classes = num_classes(report)
    huge = [
        buffer
        for buffer in report.buffers
        if buffer.category in MADE_IN_PASSES
        and buffer.size_bytes > _HUGE * report.footprint_bytes
        and not (is_square(buffer) or (classes and is_logits(buffer, classes)))  # for which there is better advice
    ]
    if not huge:
        return ()
    largest = huge[0]  # buffers are sorted by size
    shape = f"{largest.dtype}[{','.join(map(str, largest.shape))}]"

    def without(buffer: LiveBuffer) -> Instead | None:
        """What is made of it, above all its cotangent, is as large or half as large, and goes with it."""
        alike = buffer.category in MADE_IN_PASSES and 2 * buffer.size_bytes >= largest.size_bytes
        return Instead(size_bytes=buffer.size_bytes // _PIECES) if alike else None

    return (
        Proposal(
            what=f"Make {shape} in pieces, or not at all",
            evidence=f"one array holds {largest.size_bytes:,} bytes, "
            f"{largest.size_bytes / report.footprint_bytes:.0%} of the footprint; it is made at "
            f"{made_at(largest)}",
            cost="a loop instead of one operation, and its values again in the backward pass",
            how_to="ys = jax.lax.map(jax.checkpoint(f), xs, batch_size=len(xs) // 32)",
            without=without,
        ),
    )


RULE = AdviceRule(name="huge_buffer", propose=_propose)
