"""Draw stacks of bytes in character cells: the gauge, the bars, and the chart over program order.

Every full cell shows the letter of its category on the category's colour, so a picture is readable in black and white.
In the chart, bytes extend upwards and program order to the right, with bands below. Each band has a row of its own:
the compiler interleaves the phases of a step, and a single row would be too fragmented to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from memprof.analysis.records.categories import Category
from memprof.reports.document import Align, Gauge, Moment, Part, StackedBar, StackedBars, StackedChart, Tone
from memprof.reports.layout.lines import Line, Paper, Span, merge, pad, trim
from memprof.reports.palette import CATEGORY_LETTERS
from memprof.reports.text import cell_width
from memprof.reports.units import format_bytes, format_share

_GAP = 2
_LONGEST_LABEL_SHARE = 0.3  # of the page width; the bars need the rest
_HEIGHT, _SMALL_HEIGHT = 16, 3
_LABELS = 4  # axis labels of a chart that is not small
_MAX_SIZES = 5  # parts listed with their sizes under a gauge; the rest is summed up
_COMPOSITION_SHARE = 0.6  # of the page width; the share of the capacity takes the rest
_BLANK = Span(text=" ")


def stack_cells(parts: Sequence[Part], *, bytes_per_cell: float, num_cells: int) -> list[Category]:
    """Return the category in the middle of each cell that the stack reaches."""
    total_bytes = sum(part.size_bytes for part in parts)
    middles = ((cell + 0.5) * bytes_per_cell for cell in range(num_cells))
    return [category_at(parts, middle) for middle in middles if middle < total_bytes]


def category_at(parts: Sequence[Part], height_bytes: float) -> Category:
    """Return the category of a stack at a height in bytes; at or above its top, the topmost category."""
    end = 0
    for part in parts:
        end += part.size_bytes
        if height_bytes < end:
            return part.category
    return parts[-1].category


def _most_above(parts: Sequence[Part], height_bytes: float) -> Category:
    """Return the category with the most bytes above a height, so that no sliver colours a whole cell."""
    ends = accumulate(part.size_bytes for part in parts)
    return max(
        ((min(end - height_bytes, part.size_bytes), part.category) for part, end in zip(parts, ends, strict=True)),
        key=lambda found: found[0],
    )[1]


def letter(category: Category) -> Span:
    """Return one cell of a category: its letter on its colour."""
    return Span(text=CATEGORY_LETTERS[category], key=category, filled=True)


def capacity_mark(capacity_bytes: int, *, scale: int, num_cells: int, indent: int, paper: Paper) -> Line:
    """Draw a mark under the cell where the capacity ends, with its size on the side that has room.

    Args:
        capacity_bytes: the capacity.
        scale: the bytes that all cells together represent.
        num_cells: the number of cells.
        indent: the number of blanks before the first cell.
        paper: the output grid.
    """
    mark = paper.glyphs.mark_below
    label = f"capacity {format_bytes(capacity_bytes)}"
    at = indent + min(num_cells - 1, capacity_bytes * num_cells // scale)
    if at + len(mark) + 1 + len(label) <= paper.width:
        return (Span(text=f"{' ' * at}{mark} {label}", key=Tone.BAD),)
    return (Span(text=f"{label:>{at - 1}} {mark}", key=Tone.BAD),)


def legend_lines(categories: Sequence[Category], paper: Paper, *, indent: int) -> list[Line]:
    """Lay out the legend: the letter and the name of each category."""
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
    """Lay out a gauge: its composition beside its share of the capacity, then the verdict and the sizes, if any.

    Composition and share are separate bars: on one scale, a small step on a large card would be invisible.
    """
    lines: list[Line] = []
    if gauge.total_bytes:
        share = _share_cells(gauge, paper) if gauge.capacity_bytes else []
        num_cells = paper.width if not share else int(paper.width * _COMPOSITION_SHARE)
        cells = stack_cells(gauge.parts, bytes_per_cell=gauge.total_bytes / num_cells, num_cells=num_cells)
        lines.append(merge([*(letter(category) for category in cells), *share]))
    bullet = paper.glyphs.bullets[gauge.tone]
    for text in paper.wrap(gauge.verdict, paper.width - len(bullet)) if gauge.verdict else ():
        lines.append((Span(text=bullet + text, key=gauge.tone, bold=gauge.tone is not Tone.MUTED),))
        bullet = " " * len(bullet)
    return [*lines, *_size_lines(gauge, paper)] if gauge.with_sizes else lines


def _share_cells(gauge: Gauge, paper: Paper) -> list[Span]:
    """Draw the footprint as a bar within the capacity or beyond it, followed by its share in percent."""
    capacity, glyphs = gauge.capacity_bytes or 0, paper.glyphs
    text = f" {format_share(gauge.total_bytes, capacity)}"
    num_cells = paper.width - int(paper.width * _COMPOSITION_SHARE) - _GAP - len(text)
    used = max(1, round(gauge.total_bytes * num_cells / gauge.scale_bytes))  # a nonzero size gets at least one cell
    bar = glyphs.bar_steps[-1] * used + glyphs.free * (num_cells - used)
    if gauge.total_bytes > capacity:
        at = min(num_cells - 1, capacity * num_cells // gauge.scale_bytes)
        bar = bar[:at] + glyphs.axis + bar[at + 1 :]
    filled, free = bar[:used], bar[used:]
    gap = Span(text=" " * _GAP)
    return [gap, Span(text=filled, key=gauge.tone), Span(text=free, key=Tone.MUTED), Span(text=text, key=gauge.tone)]


def _size_lines(gauge: Gauge, paper: Paper) -> list[Line]:
    """Lay out the largest parts with their sizes and shares, in columns. Unattributed bytes are always listed."""
    most = _MAX_SIZES if len(gauge.parts) > _MAX_SIZES + 1 else _MAX_SIZES + 1
    ranked = sorted(gauge.parts, key=lambda part: (part.category is not Category.UNATTRIBUTED, -part.size_bytes))
    named, rest = sorted(ranked[:most], key=lambda part: -part.size_bytes), ranked[most:]
    texts = [(letter(part.category), part.category.value, part.size_bytes) for part in named]
    if rest:
        texts.append((_BLANK, f"({len(rest)} more)", sum(part.size_bytes for part in rest)))
    name_width = max((len(name) for _, name, _ in texts), default=0)
    cells = [
        [sign, Span(text=f" {name:<{name_width}} {format_bytes(size):>8} {format_share(size, gauge.total_bytes):>6}")]
        for sign, name, size in texts
    ]
    num_columns = max(1, (paper.width + _GAP) // (name_width + 18 + _GAP))
    lines = []
    for start in range(0, len(cells), num_columns):
        spans = [span for cell in cells[start : start + num_columns] for span in (*cell, Span(text=" " * _GAP))]
        lines.append(trim(merge(spans)))
    return lines


def bar_lines(bars: StackedBars, paper: Paper) -> list[Line]:
    """Lay out a line for each bar with its label and size, a mark where the capacity ends, and the legend."""
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
    """Draw a bar, and after it the line at which the capacity ends."""
    stack = stack_cells(bar.parts, bytes_per_cell=scale / num_cells, num_cells=num_cells)
    if bar.parts and not stack:
        stack = [category_at(bar.parts, bar.total_bytes / 2)]  # a nonempty bar gets at least one cell
    cells = [letter(category) for category in stack] + [Span(text=" ")] * (num_cells - len(stack))
    if capacity_bytes:
        at = min(num_cells - 1, capacity_bytes * num_cells // scale)
        if at >= len(stack):
            cells[at] = Span(text=paper.glyphs.axis, key=Tone.MUTED)
    return cells


def chart_lines(chart: StackedChart, paper: Paper) -> list[Line]:
    """Lay out a chart: the mark, the stacks with their axis, the bands, and the legend."""
    top_bytes = max(moment.total_bytes for moment in chart.moments)
    height = _SMALL_HEIGHT if chart.is_small else _HEIGHT
    step = height if chart.is_small else height // _LABELS
    labels = {row: format_bytes(top_bytes * row // height) for row in range(step, height + 1, step)}
    gutter = max(map(len, [*labels.values(), *(moment.band for moment in chart.moments)])) + 1
    moments = _resample(chart.moments, paper.width - gutter - 1)
    bands = dict.fromkeys(moment.band for moment in moments if moment.band)
    columns = [_column(moment, height, bytes_per_cell=top_bytes / height, paper=paper) for moment in moments]
    shown = {cell.key for column in columns for cell in column if not chart.is_small}
    return [
        _mark_line(chart.mark, moments, gutter=gutter + 1, paper=paper),
        *(
            _stack_line(columns, row, labels.get(row + 1, ""), gutter=gutter, paper=paper)
            for row in reversed(range(height))
        ),
        _axis_line(len(moments), gutter=gutter, paper=paper),
        *(_band_line(band, moments, gutter=gutter, paper=paper) for band in bands),
        *legend_lines([category for category in Category if category in shown], paper, indent=gutter + 1),
    ]


def _resample(moments: Sequence[Moment], num_columns: int) -> list[Moment]:
    """Return one moment for each column: the highest of its slice, or one moment for several columns."""
    edges = [column * len(moments) // num_columns for column in range(num_columns + 1)]
    slices = (moments[start : max(stop, start + 1)] for start, stop in pairwise(edges))
    return [max(part, key=lambda moment: moment.total_bytes) for part in slices]


def _column(moment: Moment, height: int, *, bytes_per_cell: float, paper: Paper) -> list[Span]:
    """Draw the cells of one stack from the bottom up. If partial blocks exist, the top cell is partially filled."""
    steps = paper.glyphs.stack_steps
    categories = stack_cells(moment.parts, bytes_per_cell=bytes_per_cell, num_cells=height)
    cells = [letter(category) for category in categories]
    if steps and moment.parts:
        full, part = divmod(round(moment.total_bytes / bytes_per_cell * (len(steps) + 1)), len(steps) + 1)
        cells = cells[:full]
        if part:
            cells.append(Span(text=steps[part - 1], key=_most_above(moment.parts, full * bytes_per_cell)))
    return cells + [_BLANK] * (height - len(cells))


def _stack_line(columns: list[list[Span]], row: int, label: str, *, gutter: int, paper: Paper) -> Line:
    axis = paper.glyphs.axis_tick if label else paper.glyphs.axis
    return trim(merge([_gutter(label, axis, gutter), *(column[row] for column in columns)]))


def _axis_line(num_columns: int, *, gutter: int, paper: Paper) -> Line:
    glyphs = paper.glyphs
    return (_gutter("0 B", glyphs.axis_corner + glyphs.rule * num_columns, gutter),)


def _band_line(band: str, moments: Sequence[Moment], *, gutter: int, paper: Paper) -> Line:
    cells = [Span(text=paper.glyphs.band if moment.band == band else " ") for moment in moments]
    return trim(merge([_gutter(band, " ", gutter), *cells]))


def _mark_line(mark: str, moments: Sequence[Moment], *, gutter: int, paper: Paper) -> Line:
    """Draw the mark over the highest column, with its text on the side that has room."""
    at = gutter + max(range(len(moments)), key=lambda index: moments[index].total_bytes)
    glyph = paper.glyphs.mark_above
    if at + 2 + len(mark) <= paper.width:
        return (Span(text=f"{' ' * at}{glyph} {mark}", bold=True),)
    return (Span(text=f"{mark:>{at - 1}} {glyph}", bold=True),)


def _gutter(label: str, axis: str, width: int) -> Span:
    return Span(text=f"{label:>{width - 1}} {axis}", key=Tone.MUTED)
