"""One array that makes the peak, with the line that makes it."""

from __future__ import annotations

from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.logits import is_logits, num_classes
from memprof.studies.advice.passing import MADE_IN_PASSES, made_at
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak

_HUGE = 0.2  # of the footprint
_PIECES = 32


def _propose(report: Report) -> tuple[Proposal, ...]:
    largest = _largest(report)
    if largest is None:
        return ()
    shape = f"{largest.dtype}[{','.join(map(str, largest.shape))}]"
    num_pieces = min(_PIECES, largest.shape[0])

    def without(buffer: LiveBuffer) -> Instead | None:
        """What is made of it element by element goes with it, and so do their cotangents, but nothing else."""
        is_cut = buffer.family == largest.family and buffer.category in MADE_IN_PASSES
        return Instead(size_bytes=buffer.size_bytes // num_pieces) if is_cut else None

    return (
        Proposal(
            what=f"Make {shape} in pieces, or not at all",
            evidence=f"one array holds {largest.size_bytes:,} bytes, "
            f"{largest.size_bytes / report.footprint_bytes:.0%} of the footprint; it is made at "
            f"{made_at(largest)}; with what is made of it element by element, and their cotangents: "
            f"{amount(changed_at_peak(report, without), 'arrays')} at the peak",
            cost="a loop instead of one operation, and its values again in the backward pass",
            how_to=f"ys = jax.lax.map(jax.checkpoint(f), xs, batch_size=max(1, len(xs) // {num_pieces}))",
            without=without,
        ),
    )


def _largest(report: Report) -> LiveBuffer | None:
    """The largest array that can be cut, if it is huge, and there is no better advice for it."""
    classes = num_classes(report)
    return next(
        (
            buffer
            for buffer in report.buffers  # sorted by size
            if buffer.category in MADE_IN_PASSES
            and buffer.size_bytes > _HUGE * report.footprint_bytes
            and buffer.family
            and buffer.shape[0] > 1
            and not (buffer.is_of_attention or buffer.is_stacked or (classes and is_logits(buffer, classes)))
        ),
        None,
    )


RULE = AdviceRule(name="huge_buffer", propose=_propose)
