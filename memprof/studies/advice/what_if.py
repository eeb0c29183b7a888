"""The footprint that a step would have if some of its buffers were smaller, or lived shorter.

The peak moves when buffers go: what one saves is not their size, but the difference between two peaks. So the timeline
is played again with other buffers. Fragmentation stays as it is, since it is known only after the compiler has packed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memprof.analysis.records.live_buffer import LiveBuffer, shown_source
from memprof.analysis.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """What a buffer becomes.

    Attributes:
        size_bytes: its new size.
        spans: first and last positions in program order between which it is held; None where that does not change.
        kept_bytes: what is held beside it as long as the buffer itself was.
    """

    size_bytes: int
    spans: Sequence[tuple[int, int]] | None = None
    kept_bytes: int = 0


# What a buffer becomes; None where it stays as it is.
Without = Callable[[LiveBuffer], Instead | None]


def changed_at_peak(report: Report, without: Without) -> tuple[LiveBuffer, ...]:
    """What is live at the peak and would become something else: the evidence for a saving.

    Each piece of memory is in it once, and a saving is never more than their bytes: where the peak lies now, no more
    than that goes away.
    """
    return tuple(buffer for buffer in report.buffers if without(buffer) is not None)


def amount(buffers: Sequence[LiveBuffer], what: str) -> str:
    """How many buffers there are, and how many bytes they hold: `3 results, 1,024 bytes`."""
    plural = what if len(buffers) != 1 else what.removesuffix("s")
    return f"{len(buffers)} {plural}, {sum(buffer.size_bytes for buffer in buffers):,} bytes"


def made_at(buffer: LiveBuffer) -> str:
    """Where a buffer is made, short enough for a sentence: `model.py:12`, or the operation where no line is known."""
    return re.split(r"[/\\\\]", shown_source(buffer.source))[-1] or buffer.op


def footprint_without(report: Report, without: Without, *, is_packed: bool = False) -> int:
    """The footprint in bytes if buffers became what `without` makes of them, everything else being equal.

    Args:
        is_packed: whether fragmentation goes too.
    """
    positions = [change.position for change in report.timeline.changes]
    deltas = [0] * (len(positions) + 1)
    base = 0
    indefinite = ((buffer, None) for buffer in report.buffers if not buffer.is_temp)
    temps = zip(report.temp_buffers, report.timeline.temp_changes, strict=True)
    for buffer, changes in (*indefinite, *temps):
        instead = without(buffer) or Instead(size_bytes=buffer.size_bytes)
        throughout = instead.kept_bytes + (instead.size_bytes if instead.spans is None else 0)
        if changes is None:
            base += throughout
        else:
            born, died = changes
            deltas[born] += throughout
            deltas[died] -= throughout
        for first, last in instead.spans or ():
            deltas[bisect_left(positions, first)] += instead.size_bytes
            deltas[bisect_right(positions, last)] -= instead.size_bytes
    live = peak = base
    for delta in deltas:
        live += delta
        peak = max(peak, live)
    return peak + (0 if is_packed else report.footprint_bytes - report.live_peak_bytes)
