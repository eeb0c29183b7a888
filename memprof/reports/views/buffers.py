"""The buffers that are live at the peak: grouped across layers for the summary, or one by one for a closer look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.reports.document import Cell, Shorten, Table
from memprof.reports.units import format_bytes, format_exact_bytes
from memprof.reports.views.cells import aside_cell, short_names
from memprof.reports.views.fields import category, count, number, share, table, text, total
from memprof.reports.views.layers import any_layer

_LIVE_TOTAL = "live at the peak"


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

    @property
    def array(self) -> str:
        return array_type(self.first.dtype, self.first.shape)

    @property
    def padding_bytes(self) -> int:
        return self.count * self.first.padding_bytes


def largest_buffers_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a table of the largest buffers, grouped across layers. The total is the live peak."""
    numbers = {id(buffer): number for number, buffer in enumerate(buffers, start=1)}
    names = places(buffers)
    return table(
        group_alike(buffers),
        [
            text(
                "array", lambda group: Cell(text=group.array, link=f"buffer={numbers[id(group.first)]}"), min_width=20
            ),
            count("count", lambda group: group.count, priority=3),
            number("each", lambda group: format_bytes(group.first.size_bytes), priority=4),
            total("size", lambda group: group.size_bytes),
            share(lambda group: group.size_bytes, _size_of(buffers), priority=2),
            category(lambda group: group.first.category),
            text("module", lambda group: group.module, priority=1, min_width=16),
            text("source", lambda group: names[group.first.source, group.first.library], min_width=16, below=True),
            text("op", lambda group: aside_cell(group.op), min_width=24, below=True),
        ],
        top=top,
        num_items=lambda groups: sum(group.count for group in groups),
        whole=_LIVE_TOTAL,
    )


def largest_groups_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a short version of the same table, with one line for each of its first rows."""
    names = places(buffers)
    return table(
        group_alike(buffers)[:top],
        [
            text("largest", lambda group: group.array, min_width=20),
            count("count", lambda group: group.count, priority=2),
            total("size", lambda group: group.size_bytes),
            share(lambda group: group.size_bytes, _size_of(buffers), priority=5),
            category(lambda group: group.first.category),
            text("module", lambda group: group.module, priority=1, min_width=18),
            text("op", lambda group: aside_cell(_primitive(group)), priority=4, shorten=Shorten.END, min_width=11),
            text(
                "source",
                lambda group: aside_cell(names[group.first.source, group.first.library]),
                priority=3,
                min_width=16,
            ),
        ],
        is_extract=True,
    )


def buffer_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a table of single buffers, each with its live range, its offset in the temp block and its evidence."""
    names = places(buffers)

    def offset(buffer: LiveBuffer) -> str:
        return "-" if buffer.offset is None else format_exact_bytes(buffer.offset)

    def why(buffer: LiveBuffer) -> Cell:
        return aside_cell(f"{buffer.rule}: {buffer.evidence}")

    return table(
        buffers,
        [
            text("array", lambda buffer: array_type(buffer.dtype, buffer.shape), min_width=20),
            total("size", lambda buffer: buffer.size_bytes),
            share(lambda buffer: buffer.size_bytes, _size_of(buffers), priority=2),
            category(lambda buffer: buffer.category),
            text("module", lambda buffer: buffer.module, priority=1, min_width=16),
            number("live", lambda buffer: f"{buffer.start}..{buffer.end}", priority=3),
            number("offset", offset, priority=4),
            text("source", lambda buffer: names[buffer.source, buffer.library], min_width=16, below=True),
            text("op", lambda buffer: aside_cell(buffer.op), min_width=24, below=True),
            text("why", why, shorten=Shorten.END, min_width=64, below=True),
        ],
        top=top,
        whole=_LIVE_TOTAL,
    )


def _size_of(buffers: Sequence[LiveBuffer]) -> int:
    return sum(buffer.size_bytes for buffer in buffers)


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


def _primitive(group: Alike) -> str:
    """Return the last part of an operation's name: `dot_general`; empty for an argument."""
    return group.op.rpartition("/")[2] if "/" in group.op else ""


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
