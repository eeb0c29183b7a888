"""Stacks of bytes cut into character cells: the gauge, the bars, and the chart over program order.

Every full cell holds the letter of its category on the category's colour, so a picture reads the same in black and
white. In the chart, bytes go upwards and program order to the right, with a ruler of bands below. Bands get a row each:
the compiler interleaves the phases of a step, and one shared ruler would be confetti.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from memprof.analysis.categories import Category
from memprof.reports.document import Align, Gauge, Moment, Part, StackedBar, StackedBars, StackedChart, Tone
from memprof.reports.layout.lines import Line, Paper, Span, merge, pad, trim
from memprof.reports.palette import CATEGORY_LETTERS
from memprof.reports.text import cell_width
from memprof.reports.units import format_bytes

_GAP = 2
_LONGEST_LABEL_SHARE = 0.3  # of the page; the bars are what it is for
_HEIGHT = 16
_LABELLED_EVERY = 4
_BLANK = Span(text=" ")


def stack_cells(parts: Sequence[Part], *, bytes_per_cell: float, num_cells: int) -> list[Category]:
    """The category in the middle of each cell, as far as the stack reaches."""
    total_bytes = sum(part.size_bytes for part in parts)
    middles = ((cell + 0.5) * bytes_per_cell for cell in range(num_cells))
    return [category_at(parts, middle) for middle in middles if middle < total_bytes]


def category_at(parts: Sequence[Part], height_bytes: float) -> Category:
    """The category that the stack has at a height; its topmost one at or above its top."""
    end = 0
    for part in parts:
        end += part.size_bytes
        if height_bytes < end:
            return part.category
    return parts[-1].category


def letter(category: Category) -> Span:
    """One cell of a category: its colour with its letter in it."""
    return Span(text=CATEGORY_LETTERS[category], key=category, filled=True)


def capacity_mark(capacity_bytes: int, *, scale: int, num_cells: int, indent: int, paper: Paper) -> Line:
    """A mark under the cell where the capacity ends, with its size on the side that has room.

    Args:
        scale: the bytes that `num_cells` stand for.
        indent: blanks before the first of them.
    """
    mark = paper.glyphs.mark_below
    label = f"capacity {format_bytes(capacity_bytes)}"
    at = indent + min(num_cells - 1, capacity_bytes * num_cells // scale)
    if at + len(mark) + 1 + len(label) <= paper.width:
        return (Span(text=f"{' ' * at}{mark} {label}", key=Tone.BAD),)
    return (Span(text=f"{label:>{at - 1}} {mark}", key=Tone.BAD),)


def legend_lines(categories: Sequence[Category], paper: Paper, *, indent: int) -> list[Line]:
    """Which letter is which category."""
    lines: list[Line] = []
    line: list[Span] = []
    used = indent
    for category in categories:
        width = len(category.value) + 4
        if line and used + width > paper.width:
            lines.append(trim(merge(line)))
            line, used = [], indent
        if not line:
            line.append(Span(text=" " * indent))
        line += [letter(category), Span(text=f" {category.value}  ")]
        used += width
    return [*lines, trim(merge(line))] if line else lines


def gauge_lines(gauge: Gauge, paper: Paper) -> list[Line]:
    """The bar over the page's width, a mark where the capacity ends if the bar goes past it, and the verdict."""
    scale = gauge.scale_bytes
    lines: list[Line] = []
    if scale:
        cells = stack_cells(gauge.parts, bytes_per_cell=scale / paper.width, num_cells=paper.width)
        free = Span(text=paper.glyphs.free * (paper.width - len(cells)), key=Tone.MUTED)
        lines.append(merge([*(letter(category) for category in cells), free]))
    if gauge.capacity_bytes is not None and gauge.total_bytes > gauge.capacity_bytes:
        lines.append(capacity_mark(gauge.capacity_bytes, scale=scale, num_cells=paper.width, indent=0, paper=paper))
    bullet = paper.glyphs.bullets[gauge.tone]
    for text in paper.wrap(gauge.verdict, paper.width - len(bullet)):
        lines.append((Span(text=bullet + text, key=gauge.tone, bold=gauge.tone is not Tone.MUTED),))
        bullet = " " * len(bullet)
    return lines


def bar_lines(bars: StackedBars, paper: Paper) -> list[Line]:
    """A line for each bar with its label and size, a mark where the capacity ends, and which letter is what."""
    labels = [paper.clean(bar.label) for bar in bars.bars]
    label_width = min(max(map(cell_width, labels)), int(paper.width * _LONGEST_LABEL_SHARE))
    size_width = max(cell_width(bar.size) for bar in bars.bars)
    num_cells = paper.width - label_width - size_width - 2 * _GAP
    capacity, scale = bars.shown_capacity_bytes, bars.scale_bytes
    gap = Span(text=" " * _GAP)
    lines: list[Line] = []
    shown: set[object] = set()
    for bar, label in zip(bars.bars, labels, strict=True):
        name = pad(paper.shorten(label, label_width), label_width, Align.LEFT)
        cells = _bar_cells(bar, scale=scale, num_cells=num_cells, capacity_bytes=capacity, paper=paper)
        shown |= {cell.key for cell in cells}
        size = Span(text=pad(bar.size, size_width, Align.RIGHT))
        lines.append(merge([Span(text=name), gap, *cells, gap, size]))
    indent = label_width + _GAP
    if capacity:
        lines.append(capacity_mark(capacity, scale=scale, num_cells=num_cells, indent=indent, paper=paper))
    return [*lines, *legend_lines([category for category in Category if category in shown], paper, indent=0)]


def _bar_cells(bar: StackedBar, *, scale: int, num_cells: int, capacity_bytes: int | None, paper: Paper) -> list[Span]:
    """The bar, and behind it nothing but the line at which the capacity ends."""
    stack = stack_cells(bar.parts, bytes_per_cell=scale / num_cells, num_cells=num_cells)
    if bar.parts and not stack:
        stack = [category_at(bar.parts, bar.total_bytes / 2)]  # something is never drawn as nothing
    cells = [letter(category) for category in stack] + [Span(text=" ")] * (num_cells - len(stack))
    if capacity_bytes:
        at = min(num_cells - 1, capacity_bytes * num_cells // scale)
        if at >= len(stack):
            cells[at] = Span(text=paper.glyphs.axis, key=Tone.MUTED)
    return cells


def chart_lines(chart: StackedChart, paper: Paper) -> list[Line]:
    """The mark, the stacks with their axis, the bands, and which letter is what."""
    top_bytes = max(moment.total_bytes for moment in chart.moments)
    labels = [format_bytes(top_bytes * row // _HEIGHT) for row in range(_LABELLED_EVERY, _HEIGHT + 1, _LABELLED_EVERY)]
    gutter = max(map(len, [*labels, *(moment.band for moment in chart.moments)])) + 1
    moments = _resample(chart.moments, paper.width - gutter - 1)
    bands = dict.fromkeys(moment.band for moment in moments if moment.band)
    columns = [_column(moment, bytes_per_cell=top_bytes / _HEIGHT, paper=paper) for moment in moments]
    shown = {cell.key for column in columns for cell in column}
    return [
        _mark_line(chart.mark, moments, gutter=gutter + 1, paper=paper),
        *(_stack_line(columns, row, top_bytes, gutter=gutter, paper=paper) for row in reversed(range(_HEIGHT))),
        _axis_line(len(moments), gutter=gutter, paper=paper),
        *(_band_line(band, moments, gutter=gutter, paper=paper) for band in bands),
        *legend_lines([category for category in Category if category in shown], paper, indent=gutter + 1),
    ]


def _resample(moments: Sequence[Moment], num_columns: int) -> list[Moment]:
    """As many moments as there are columns: each slice's highest, or each one drawn several columns wide."""
    edges = [column * len(moments) // num_columns for column in range(num_columns + 1)]
    slices = (moments[start : max(stop, start + 1)] for start, stop in pairwise(edges))
    return [max(part, key=lambda moment: moment.total_bytes) for part in slices]


def _column(moment: Moment, *, bytes_per_cell: float, paper: Paper) -> list[Span]:
    """The cells of one stack from the bottom up. Where there are part blocks, the top cell shows how full it is."""
    steps = paper.glyphs.stack_steps
    categories = stack_cells(moment.parts, bytes_per_cell=bytes_per_cell, num_cells=_HEIGHT)
    cells = [letter(category) for category in categories]
    if steps and moment.parts:
        full, part = divmod(round(moment.total_bytes / bytes_per_cell * (len(steps) + 1)), len(steps) + 1)
        cells = cells[:full]
        if part:
            # Halfway between the cell's bottom and the stack's top: a sliver on top does not colour the whole cell.
            middle = (full * bytes_per_cell + moment.total_bytes) / 2
            cells.append(Span(text=steps[part - 1], key=category_at(moment.parts, middle)))
    return cells + [_BLANK] * (_HEIGHT - len(cells))


def _stack_line(columns: list[list[Span]], row: int, top_bytes: int, *, gutter: int, paper: Paper) -> Line:
    labelled = (row + 1) % _LABELLED_EVERY == 0
    label = format_bytes(top_bytes * (row + 1) // _HEIGHT) if labelled else ""
    axis = paper.glyphs.axis_tick if labelled else paper.glyphs.axis
    return trim(merge([_gutter(label, axis, gutter), *(column[row] for column in columns)]))


def _axis_line(num_columns: int, *, gutter: int, paper: Paper) -> Line:
    glyphs = paper.glyphs
    return (_gutter("0 B", glyphs.axis_corner + glyphs.rule * num_columns, gutter),)


def _band_line(band: str, moments: Sequence[Moment], *, gutter: int, paper: Paper) -> Line:
    cells = [Span(text=paper.glyphs.band if moment.band == band else " ") for moment in moments]
    return trim(merge([_gutter(band, " ", gutter), *cells]))


def _mark_line(mark: str, moments: Sequence[Moment], *, gutter: int, paper: Paper) -> Line:
    """The mark over the highest column, with its words on the side that has room."""
    at = gutter + max(range(len(moments)), key=lambda index: moments[index].total_bytes)
    glyph = paper.glyphs.mark_above
    if at + 2 + len(mark) <= paper.width:
        return (Span(text=f"{' ' * at}{glyph} {mark}", bold=True),)
    return (Span(text=f"{mark:>{at - 1}} {glyph}", bold=True),)


def _gutter(label: str, axis: str, width: int) -> Span:
    return Span(text=f"{label:>{width - 1}} {axis}", key=Tone.MUTED)
