"""Choose the columns of a table that fit a given width, and their widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.reports.document import Column

_FIRST_COLUMN_SHARE = 3  # the first column of a continued table takes at most a third of the width


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Width requirements of a column, in terminal cells.

    Attributes:
        index: the index of the column in its table.
        natural: the width that fits all content.
        minimum: the width below which the column is dropped.
    """

    index: int
    column: Column
    natural: int
    minimum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The placement of the columns.

    Attributes:
        widths: the width of each column in the grid, in cells, by its index, in order.
        below: indices of the columns on separate lines under the row.
        dropped: indices of the dropped columns.
        gap: the number of blanks between two columns.
    """

    widths: dict[int, int]
    below: tuple[int, ...]
    dropped: tuple[int, ...]
    gap: int

    def is_too_wide(self, width: int) -> bool:
        """Return whether the grid is wider than `width` cells."""
        return _total(list(self.widths.values()), gap=self.gap) > width


def fit_columns(needs: Sequence[Need], width: int) -> Fit:
    """Fit columns into `width` cells.

    If all columns fit, they stand side by side. Otherwise the following steps apply, in this order:

    1. columns that may move below their row do so;
    2. texts are shortened, and the gap is narrowed;
    3. columns are dropped, the highest priority number first, and restored if they fit in the end.

    Columns that can neither be shortened nor dropped, such as numbers on a very narrow page, overflow instead of
    breaking.
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
    for need in reversed(dropped):  # a narrow column may fit where a wide one did not
        if _total([other.minimum for other in [*grid, need]], gap=gap) <= width:
            grid.append(need)
    grid.sort(key=lambda need: need.index)
    left_out = sorted({need.index for need in dropped} - {need.index for need in grid})
    widths = _grow(grid, width - gap * (len(grid) - 1))
    return Fit(widths=widths, below=below, dropped=tuple(left_out), gap=gap)


def continue_columns(needs: Sequence[Need], width: int) -> list[Fit]:
    """Distribute columns over as many tables of `width` cells as needed; each table repeats the first column."""
    first, *rest = needs
    gap = 2
    first_width = min(first.natural, max(first.minimum, width // _FIRST_COLUMN_SHARE))
    parts = break_lines(rest, width - first_width - gap, gap=gap) or [{}]
    return [Fit(widths={first.index: first_width, **part}, below=(), dropped=(), gap=gap) for part in parts]


def break_lines(needs: Sequence[Need], width: int, *, gap: int) -> list[dict[int, int]]:
    """Put columns on as few lines as their minimum widths allow, in order.

    Returns:
        For each line, the widths of its columns in cells, by index.
    """
    lines: list[list[Need]] = []
    for need in needs:
        if lines and _total([other.minimum for other in [*lines[-1], need]], gap=gap) <= width:
            lines[-1].append(need)
        else:
            lines.append([need])
    return [_grow(line, width - gap * (len(line) - 1)) for line in lines]


def _grow(needs: Sequence[Need], width: int) -> dict[int, int]:
    """Start at the minimum widths, and divide the remaining cells equally between the columns that can use them."""
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
