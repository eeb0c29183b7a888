"""Stacks of bytes cut into character cells: what the gauge, the bars and the chart share."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.categories import Category
from memprof.reports.document import Part, Tone
from memprof.reports.layout.lines import Line, Paper, Span, merge, trim
from memprof.reports.palette import CATEGORY_LETTERS
from memprof.reports.units import format_bytes


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
