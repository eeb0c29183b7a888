"""Stacked bars on one scale, so that one sees which is longer and what of."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.reports.document import Align, StackedBar, StackedBars, Tone
from memprof.reports.layout.lines import Line, Paper, Span, merge, pad
from memprof.reports.layout.stack import capacity_mark, category_at, legend_lines, letter, stack_cells
from memprof.reports.text import cell_width

_GAP = 2
_LONGEST_LABEL_SHARE = 0.3  # of the page; the bars are what it is for


def bar_lines(bars: StackedBars, paper: Paper) -> list[Line]:
    """A line for each bar with its label and size, a mark where the capacity ends, and which letter is what."""
    labels = [paper.clean(bar.label) for bar in bars.bars]
    label_width = min(max(map(cell_width, labels)), int(paper.width * _LONGEST_LABEL_SHARE))
    size_width = max(cell_width(bar.size) for bar in bars.bars)
    num_cells = paper.width - label_width - size_width - 2 * _GAP
    capacity = _shown_capacity(bars)
    scale = max(capacity or 0, *(bar.total_bytes for bar in bars.bars), 1)
    gap = Span(text=" " * _GAP)
    lines: list[Line] = []
    shown: set[object] = set()
    for bar, label in zip(bars.bars, labels, strict=True):
        name = pad(paper.shorten(label, label_width), label_width, Align.LEFT)
        cells = _cells(bar, scale=scale, num_cells=num_cells, capacity_bytes=capacity, paper=paper)
        shown |= {cell.key for cell in cells}
        size = Span(text=pad(bar.size, size_width, Align.RIGHT))
        lines.append(merge([Span(text=name), gap, *cells, gap, size]))
    indent = label_width + _GAP
    if capacity:
        lines.append(capacity_mark(capacity, scale=scale, num_cells=num_cells, indent=indent, paper=paper))
    return [*lines, *legend_lines([category for category in Category if category in shown], paper, indent=0)]


def _shown_capacity(bars: StackedBars) -> int | None:
    """The capacity, unless it would leave more than a quarter of the page empty."""
    longest = max(bar.total_bytes for bar in bars.bars)
    return bars.capacity_bytes if bars.capacity_bytes and 3 * bars.capacity_bytes <= 4 * longest else None


def _cells(bar: StackedBar, *, scale: int, num_cells: int, capacity_bytes: int | None, paper: Paper) -> list[Span]:
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
