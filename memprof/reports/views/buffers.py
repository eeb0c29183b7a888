"""The buffers that are live at the peak: grouped across layers for the summary, or one by one for a closer look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.reports.document import Align, Cell, Column, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_exact_bytes, format_share
from memprof.reports.views.cells import aside_cell, more_label, short_names
from memprof.reports.views.layers import any_layer

_LIVE_TOTAL = "live at the peak"

_TYPE = Column(title="array", shorten=Shorten.MIDDLE, min_width=20)
_SIZE = Column(title="size", align=Align.RIGHT)
_SHARE = Column(title="share", align=Align.RIGHT, priority=2)
_CATEGORY = Column(title="category")
_MODULE = Column(title="module", priority=1, shorten=Shorten.MIDDLE, min_width=16)
_SOURCE = Column(title="source", shorten=Shorten.MIDDLE, min_width=16, below=True)
_OP = Column(title="op", shorten=Shorten.MIDDLE, min_width=24, below=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Buffers that differ only in their layer number."""

    first: LiveBuffer
    module: str
    op: str
    count: int

    @property
    def size_bytes(self) -> int:
        return self.count * self.first.size_bytes


def largest_buffers_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a table of the largest buffers, grouped across layers. The total is the live peak."""
    total_bytes = sum(buffer.size_bytes for buffer in buffers)
    groups = group_alike(buffers)
    names = places(buffers)
    numbers = {id(buffer): number for number, buffer in enumerate(buffers, start=1)}
    rows = [_alike_row(group, names, total_bytes, numbers[id(group.first)]) for group in groups[:top]]
    rest = groups[top:]
    if rest:
        num_rest = sum(group.count for group in rest)
        rest_bytes = sum(group.size_bytes for group in rest)
        rows.append(_sum_row(aside_cell(more_label(num_rest)), num_rest, rest_bytes, total_bytes))
    each = Column(title="each", align=Align.RIGHT, priority=4)
    count = Column(title="count", align=Align.RIGHT, priority=3)
    return Table(
        columns=(_TYPE, count, each, _SIZE, _SHARE, _CATEGORY, _MODULE, _SOURCE, _OP),
        rows=tuple(rows),
        total=_sum_row(Cell(text=_LIVE_TOTAL), len(buffers), total_bytes, total_bytes),
    )


def largest_groups_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a short version of the same table, with one line for each of its first rows."""
    total_bytes = sum(buffer.size_bytes for buffer in buffers)
    names = places(buffers)
    groups = group_alike(buffers)[:top]
    rows = [
        Row(
            cells=(
                _type_cell(group.first),
                Cell(text=f"{group.count:,}"),
                _size_cell(group.size_bytes),
                Cell(text=format_share(group.size_bytes, total_bytes)),
                Cell(text=group.first.category.value, key=group.first.category),
                Cell(text=group.module),
                aside_cell(_primitive(group)),
                aside_cell(names[group.first.source, group.first.library]),
            )
        )
        for group in groups
    ]
    return Table(
        columns=(
            replace(_TYPE, title="largest"),
            Column(title="count", align=Align.RIGHT, priority=2),
            _SIZE,
            replace(_SHARE, priority=5),
            _CATEGORY,
            replace(_MODULE, min_width=18),
            Column(title="op", priority=4, shorten=Shorten.END, min_width=11),
            replace(_SOURCE, below=False, priority=3),
        ),
        rows=tuple(rows),
        is_extract=True,
    )


def buffer_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a table of single buffers, each with its live range, its offset in the temp block and its evidence."""
    total_bytes = sum(buffer.size_bytes for buffer in buffers)
    names = places(buffers)
    rows = [_buffer_row(buffer, names, total_bytes) for buffer in buffers[:top]]
    rest = buffers[top:]
    if rest:
        rest_bytes = sum(buffer.size_bytes for buffer in rest)
        rows.append(_single_sum_row(aside_cell(more_label(len(rest))), rest_bytes, total_bytes))
    return Table(
        columns=(
            _TYPE,
            _SIZE,
            _SHARE,
            _CATEGORY,
            _MODULE,
            Column(title="live", align=Align.RIGHT, priority=3),
            Column(title="offset", align=Align.RIGHT, priority=4),
            _SOURCE,
            _OP,
            Column(title="why", shorten=Shorten.END, min_width=64, below=True),
        ),
        rows=tuple(rows),
        total=_single_sum_row(Cell(text=_LIVE_TOTAL), total_bytes, total_bytes),
    )


def group_alike(buffers: Sequence[LiveBuffer]) -> list[Alike]:
    """Group the buffers that differ only in their layer number, the largest sum first."""
    groups: dict[tuple[object, ...], list[LiveBuffer]] = {}
    for buffer in buffers:
        names = (any_layer(buffer.op), any_layer(buffer.module), buffer.source, buffer.library)
        key = (
            *names,
            buffer.size_bytes,
            buffer.padding_bytes,
            buffer.shape,
            buffer.dtype,
            buffer.category,
            buffer.phase,
        )
        groups.setdefault(key, []).append(buffer)
    alike = [_alike(members) for members in groups.values()]
    return sorted(alike, key=lambda group: -group.size_bytes)


def _alike(members: list[LiveBuffer]) -> Alike:
    first = members[0]
    if len(members) == 1:
        return Alike(first=first, module=first.module, op=first.op, count=1)
    return Alike(first=first, module=any_layer(first.module), op=any_layer(first.op), count=len(members))


def _alike_row(group: Alike, names: Mapping[tuple[str, str], str], total_bytes: int, number: int) -> Row:
    """Build the row of a group.

    Args:
        group: the buffers.
        names: the displayed names of source lines (see `places`).
        total_bytes: the live peak.
        number: the number of the group's first buffer in the report, from 1.
    """
    return Row(
        cells=(
            replace(_type_cell(group.first), link=f"buffer={number}"),
            Cell(text=f"{group.count:,}"),
            _size_cell(group.first.size_bytes),
            _size_cell(group.size_bytes),
            Cell(text=format_share(group.size_bytes, total_bytes)),
            Cell(text=group.first.category.value, key=group.first.category),
            Cell(text=group.module),
            Cell(text=names[group.first.source, group.first.library]),
            aside_cell(group.op),
        )
    )


def _primitive(group: Alike) -> str:
    """Return the last part of an operation's name: `dot_general`; empty for an argument."""
    return group.op.rpartition("/")[2] if "/" in group.op else ""


def _sum_row(label: Cell, count: int, size_bytes: int, total_bytes: int) -> Row:
    sums = (
        Cell(text=f"{count:,}"),
        Cell(text=""),
        _size_cell(size_bytes),
        Cell(text=format_share(size_bytes, total_bytes)),
    )
    return Row(cells=(label, *sums, *(Cell(text=""),) * 4))


def _buffer_row(buffer: LiveBuffer, names: Mapping[tuple[str, str], str], total_bytes: int) -> Row:
    return Row(
        cells=(
            _type_cell(buffer),
            _size_cell(buffer.size_bytes),
            Cell(text=format_share(buffer.size_bytes, total_bytes)),
            Cell(text=buffer.category.value, key=buffer.category),
            Cell(text=buffer.module),
            Cell(text=f"{buffer.start}..{buffer.end}"),
            Cell(text="-" if buffer.offset is None else format_exact_bytes(buffer.offset)),
            Cell(text=names[buffer.source, buffer.library]),
            aside_cell(buffer.op),
            aside_cell(f"{buffer.rule}: {buffer.evidence}"),
        )
    )


def _single_sum_row(label: Cell, size_bytes: int, total_bytes: int) -> Row:
    sums = (_size_cell(size_bytes), Cell(text=format_share(size_bytes, total_bytes)))
    return Row(cells=(label, *sums, *(Cell(text=""),) * 7))


def _size_cell(size_bytes: int) -> Cell:
    """Format a size; an empty buffer shows `0 B` instead of a dash."""
    return Cell(text=format_bytes(size_bytes))


def _type_cell(buffer: LiveBuffer) -> Cell:
    return Cell(text=array_type(buffer.dtype, buffer.shape))


def places(buffers: Sequence[LiveBuffer]) -> dict[tuple[str, str], str]:
    """Return the displayed source line of buffers, by their `source` and `library`.

    It includes the library's line if several library lines share one line of the user's code.
    """
    names = short_names(buffer.source for buffer in buffers)
    beneath: dict[str, set[str]] = defaultdict(set)
    for buffer in buffers:
        beneath[buffer.source].add(buffer.library)
    return {
        (source, library): f"{names[source]} > {library}" if library and len(libraries) > 1 else names[source]
        for source, libraries in beneath.items()
        for library in libraries
    }
