"""Two reports set against each other, buffer by buffer: what grew, and what shrank.

The buffers of two programs are matched by the operation that makes them and their shape. Several of one operation and
shape are one entry with their sum; what only one of the programs has stands against nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from memprof.analysis.categories import Category
from memprof.analysis.comparison import ReportComparison, compare
from memprof.analysis.report import LiveBuffer, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedBuffers:
    """The buffers of one operation and shape that are live at the peak, before and after.

    Attributes:
        dtypes: all that they have, in XLA's words; more than one where the precision changed.
        category: of the largest after, or, where none is left, before; `module` and `source` likewise.
    """

    op: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    category: Category
    module: str
    source: str
    num_before: int
    num_after: int
    before_bytes: int
    after_bytes: int

    @property
    def delta_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What changed from one report to another.

    Attributes:
        comparison: both as rows, the one before being the reference.
        buffers: all that either has, the largest change first; their changes add up to that of the live peak.
    """

    comparison: ReportComparison
    buffers: tuple[MatchedBuffers, ...]

    @property
    def before(self) -> Report:
        return self.comparison.rows[0]

    @property
    def after(self) -> Report:
        return self.comparison.rows[1]


def diff(before: Report, after: Report) -> Diff:
    """Set `after` against `before`; their labels differ."""
    members: dict[tuple[str, tuple[int, ...]], tuple[list[LiveBuffer], list[LiveBuffer]]] = defaultdict(
        lambda: ([], [])
    )
    for side, report in enumerate((before, after)):
        for buffer in report.buffers:
            members[buffer.op or buffer.name, buffer.shape][side].append(buffer)
    matched = (_matched(op, shape, *sides) for (op, shape), sides in members.items())
    return Diff(
        comparison=compare([before, after], baseline=before.label),
        buffers=tuple(sorted(matched, key=lambda each: (-abs(each.delta_bytes), -each.after_bytes))),
    )


def _matched(
    op: str, shape: tuple[int, ...], before: Sequence[LiveBuffer], after: Sequence[LiveBuffer]
) -> MatchedBuffers:
    shown = max(after or before, key=lambda buffer: buffer.size_bytes)
    return MatchedBuffers(
        op=op,
        shape=shape,
        dtypes=tuple(dict.fromkeys(buffer.dtype for buffer in (*before, *after))),
        category=shown.category,
        module=shown.module,
        source=shown.source,
        num_before=len(before),
        num_after=len(after),
        before_bytes=sum(buffer.size_bytes for buffer in before),
        after_bytes=sum(buffer.size_bytes for buffer in after),
    )
