"""The stacked chart: bytes upwards, program order to the right, and a ruler of bands below.

Every full cell holds the letter of its category on the category's colour, so the picture reads the same in black and
white. Bands get a row each: the compiler interleaves the phases of a step, and one shared ruler would be confetti.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from memprof.analysis.categories import Category
from memprof.reports.document import Moment, StackedChart, Tone
from memprof.reports.layout.lines import Line, Paper, Span, merge, trim
from memprof.reports.layout.stack import category_at, legend_lines, letter, stack_cells
from memprof.reports.units import format_bytes

_HEIGHT = 16
_LABELLED_EVERY = 4
_BLANK = Span(text=" ")


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
