"""Which columns of a table are shown at a width, and how wide each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.reports.document import Column

_FIRST_COLUMN_SHARE = 3  # of a table that is continued, at most a third


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a column asks for, in cells: `natural` for everything in it, `minimum` before it is dropped."""

    index: int
    column: Column
    natural: int
    minimum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What the columns get.

    Attributes:
        widths: the width of each column that stands in the grid, by its index, in order.
        below: indices of the columns that go on a line of their own under the row.
        dropped: indices of the columns that are left out.
        gap: blanks between two columns.
    """

    widths: dict[int, int]
    below: tuple[int, ...]
    dropped: tuple[int, ...]
    gap: int

    def is_too_wide(self, width: int) -> bool:
        """Whether it sticks out of `width` cells."""
        return _total(list(self.widths.values()), gap=self.gap) > width


def fit_columns(needs: Sequence[Need], width: int) -> Fit:
    """Fit columns into `width` cells.

    Everything stands side by side if it fits whole. Else the columns that may go below do; then texts are shortened and
    the gap closes up; then columns are dropped, the highest priority number first, and put back if they fit in the end.
    What may neither be shortened nor dropped (numbers, on a page that is too narrow even for them) sticks out rather
    than break.
    """
    grid = list(needs)
    below: tuple[int, ...] = ()
    if _total([need.natural for need in grid], gap=2) > width:
        below = tuple(need.index for need in grid if need.column.below)
        grid = [need for need in grid if not need.column.below]
    gap = 2 if _total([need.minimum for need in grid], gap=2) <= width else 1
    dropped: list[Need] = []
    while _total([need.minimum for need in grid], gap=gap) > width:
        last = max(grid, key=lambda need: (need.column.priority, need.index))
        if last.column.priority == 0:
            break
        grid.remove(last)
        dropped.append(last)
    for need in reversed(dropped):  # a narrow one may have room where a wide one has not
        if _total([other.minimum for other in [*grid, need]], gap=gap) <= width:
            grid.append(need)
    grid.sort(key=lambda need: need.index)
    left_out = sorted({need.index for need in dropped} - {need.index for need in grid})
    widths = _grow(grid, width - gap * (len(grid) - 1))
    return Fit(widths=widths, below=below, dropped=tuple(left_out), gap=gap)


def continue_columns(needs: Sequence[Need], width: int) -> list[Fit]:
    """Fit columns into as many tables of `width` cells as they take; the first column stands in each of them."""
    first, *rest = needs
    gap = 2
    first_width = min(first.natural, max(first.minimum, width // _FIRST_COLUMN_SHARE))
    parts = break_lines(rest, width - first_width - gap, gap=gap) or [{}]
    return [Fit(widths={first.index: first_width, **part}, below=(), dropped=(), gap=gap) for part in parts]


def break_lines(needs: Sequence[Need], width: int, *, gap: int) -> list[dict[int, int]]:
    """Put texts on as few lines as their minimum widths allow, in order; each line's widths by index."""
    lines: list[list[Need]] = []
    for need in needs:
        if lines and _total([other.minimum for other in [*lines[-1], need]], gap=gap) <= width:
            lines[-1].append(need)
        else:
            lines.append([need])
    return [_grow(line, width - gap * (len(line) - 1)) for line in lines]


def _grow(needs: Sequence[Need], width: int) -> dict[int, int]:
    """Start at the minimum and give what is left to the columns that can use it, in equal parts."""
    widths = {need.index: need.minimum for need in needs}
    left = width - sum(widths.values())
    while left > 0:
        hungry = [need for need in needs if widths[need.index] < need.natural]
        if not hungry:
            break
        for need in hungry[:left]:
            more = min(max(1, left // len(hungry)), need.natural - widths[need.index])
            widths[need.index] += more
        left = width - sum(widths.values())
    return widths


def _total(widths: Sequence[int], *, gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)
