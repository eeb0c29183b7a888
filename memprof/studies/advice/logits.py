"""Which arrays of a step are its logits: what the loss is computed of, a column for each class or token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from memprof.analysis.categories import Phase
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.passing import FLOATS, MADE_IN_PASSES, has_passes
from memprof.studies.advice.residuals import repeated_modules

_WIDER = 2  # than whatever else the model computes


def num_classes(report: Report) -> int | None:
    """The columns of the logits: the widest arrays, made last in the forward pass, and in no layer or loop.

    A softmax is taken of them, whether for its probabilities or for the logarithm of their sum.
    """
    repeated = {path for paths in repeated_modules(report).values() for path in paths}
    lengths = {loop.trip_count for loop in report.program.loops}
    by_width: dict[int, list[LiveBuffer]] = defaultdict(list)
    for buffer in report.temp_buffers:
        is_array = buffer.category in MADE_IN_PASSES and buffer.dtype in FLOATS and len(buffer.shape) > 1
        if is_array and not buffer.is_of_attention:
            by_width[buffer.shape[-1]].append(buffer)
    widths = sorted(by_width, reverse=True)
    if len(widths) < 2 or widths[0] < _WIDER * widths[1]:
        return None
    widest = by_width[widths[0]]
    if not any(buffer.is_of_softmax for buffer in widest):
        return None
    if not has_passes(widest) or any(
        buffer.module in repeated or buffer.shape[0] in lengths or "/while/" in buffer.op for buffer in widest
    ):
        return None
    enough = max(buffer.size_bytes for buffer in widest) / 10
    others = [buffer for width in widths[1:] for buffer in by_width[width] if buffer.size_bytes > enough]
    return widths[0] if _last_forward(widest) >= _last_forward(others) else None


def _last_forward(buffers: Iterable[LiveBuffer]) -> int:
    return max((buffer.start for buffer in buffers if buffer.phase is Phase.FORWARD), default=-1)


def is_logits(buffer: LiveBuffer, classes: int) -> bool:
    """Whether it is an array with a column for each class, made on the way from the parameters to their gradients."""
    return buffer.category in MADE_IN_PASSES and len(buffer.shape) > 1 and buffer.shape[-1] == classes
