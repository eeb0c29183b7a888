"""Tables of records: a field is a column with the functions that make its cells, so a table is a list of fields.

fields: Fields[LiveGroup] = (
    text("array", lambda each: each.type, min_width=12),
    total("size", lambda each: each.size_bytes),
)
table(groups, fields, top=10, whole="all arrays")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from memprof.analysis.records.categories import Category
from memprof.reports.document import Align, Bar, Cell, Column, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import aside_cell, category_cell, more_label

Item = TypeVar("Item")


def _empty(items: object) -> Cell:
    return Cell(text="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Generic[Item]):
    """A column, and the functions that make its cell for one record and for the sum of several."""

    column: Column
    cell: Callable[[Item], Cell | Bar]
    sum: Callable[[Sequence[Item]], Cell | Bar] = _empty


Fields = Sequence[Field[Item]]


def text(
    title: str,
    of: Callable[[Item], str | Cell],
    *,
    priority: int = 0,
    min_width: int = 0,
    shorten: Shorten = Shorten.MIDDLE,
    below: bool = False,
) -> Field[Item]:
    """Make a field of words. With a `min_width`, they are shortened if room is short. See `Column`."""
    column = Column(title=title, priority=priority, below=below)
    if min_width:
        column = Column(title=title, priority=priority, below=below, shorten=shorten, min_width=min_width)
    return Field(column=column, cell=lambda item: as_cell(of(item)))


def number(title: str, of: Callable[[Item], str | Cell], *, priority: int = 0) -> Field[Item]:
    """Make a field of numbers that do not add up."""
    column = Column(title=title, align=Align.RIGHT, priority=priority)
    return Field(column=column, cell=lambda item: as_cell(of(item)))


def summed(
    title: str, of: Callable[[Sequence[Item]], str | Cell | Bar], *, align: Align = Align.RIGHT, priority: int = 0
) -> Field[Item]:
    """Make a field from a function that sums several records up."""
    return Field(
        column=Column(title=title, align=align, priority=priority),
        cell=lambda item: as_cell(of((item,))),
        sum=lambda items: as_cell(of(items)),
    )


def total(
    title: str,
    of: Callable[[Item], int],
    show: Callable[[int], str | Cell] = format_bytes,
    *,
    priority: int = 0,
) -> Field[Item]:
    """Make a field of numbers that add up, sizes by default."""
    return summed(title, lambda items: show(sum(map(of, items))), priority=priority)


def count(title: str, of: Callable[[Item], int], *, priority: int = 0) -> Field[Item]:
    """Make a field of counts, which add up."""
    return total(title, of, "{:,}".format, priority=priority)


def share(of: Callable[[Item], int], whole: int, *, priority: int = 0) -> Field[Item]:
    """Make a field of shares of a whole, which add up."""
    return total("share", of, lambda part: format_share(part, whole), priority=priority)


def bar(of: Callable[[Item], int], *, priority: int = 0) -> Field[Item]:
    """Make a field of bars, which has no title: the number is in the field before it."""
    return summed("", lambda items: Bar(value=sum(map(of, items))), align=Align.LEFT, priority=priority)


def category(of: Callable[[Item], Category], *, priority: int = 0) -> Field[Item]:
    """Make a field of categories, with their letters."""
    return text("category", lambda item: category_cell(of(item)), priority=priority)


def as_cell(value: str | Cell | Bar) -> Cell | Bar:
    """Make a cell of a plain text."""
    return Cell(text=value) if isinstance(value, str) else value


def table(
    items: Sequence[Item],
    fields: Fields[Item],
    *,
    top: int | None = None,
    whole: str = "",
    in_whole: Sequence[Item] | None = None,
    num_items: Callable[[Sequence[Item]], int] = len,
    is_extract: bool = False,
) -> Table:
    """Build a table with a row for each record.

    Args:
        items: the records, in the order of the rows.
        fields: the columns. The first one holds the names of the rows.
        top: the number of rows; the rest is summed up in one. None means all.
        whole: the name of the total; without it, the table has no total.
        in_whole: the records that the total sums up, if they are more than `items`.
        num_items: the number that the row of the rest shows.
        is_extract: see `Table`.
    """
    shown, rest = (items, ()) if top is None else (items[:top], items[top:])
    rows = [Row(cells=tuple(field.cell(item) for field in fields)) for item in shown]
    if rest:
        rows.append(_sum_row(aside_cell(more_label(num_items(rest))), rest, fields))
    return Table(
        columns=tuple(field.column for field in fields),
        rows=tuple(rows),
        total=_sum_row(Cell(text=whole), items if in_whole is None else in_whole, fields) if whole else None,
        is_extract=is_extract,
    )


def _sum_row(label: Cell, items: Sequence[Item], fields: Fields[Item]) -> Row:
    return Row(cells=(label, *(field.sum(items) for field in fields[1:])))
