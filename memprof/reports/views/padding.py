"""Padding, memory without elements: the buffers at the peak by their padding, grouped across layers."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.reports.document import Align, Cell, Column, Fact, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_exact_bytes, format_share
from memprof.reports.views.buffers import Alike, group_alike, places
from memprof.reports.views.cells import aside_cell, more_label

_TITLES = ("array", "padded to", "count", "elements", "takes", "padding", "share", "category", "module", "source")


def padding_facts(report: Report) -> tuple[Fact, ...]:
    """List the padding of all buffers, and the buffer with the most; empty if there is no padding."""
    if not report.padding_bytes:
        return ()
    share = format_share(report.padding_bytes, report.live_peak_bytes)
    values = (format_bytes(report.padding_bytes), f"{share} of the live peak", _example(_padded(report.buffers)[0]))
    return (Fact(label="padding", values=values),)


def padding_table(buffers: Sequence[LiveBuffer], *, top: int) -> Table:
    """Build a table of the buffers with the most padding. The total is the live peak with all of its padding."""
    names = places(buffers)
    groups = _padded(buffers)
    total_bytes = sum(buffer.padding_bytes for buffer in buffers)
    rows = [_row(group, names[group.first.source, group.first.library], total_bytes) for group in groups[:top]]
    rest = groups[top:]
    if rest:
        count, takes, padding = (sum(each) for each in zip(*map(_sums, rest), strict=True))
        rows.append(_sum_row(aside_cell(more_label(count)), count, takes, padding, total_bytes))
    live_bytes = sum(buffer.size_bytes for buffer in buffers)
    return Table(
        columns=(
            Column(title=_TITLES[0], shorten=Shorten.MIDDLE, min_width=16),
            Column(title=_TITLES[1], shorten=Shorten.MIDDLE, min_width=16, priority=4),
            *(Column(title=title, align=Align.RIGHT, priority=3) for title in _TITLES[2:4]),
            *(Column(title=title, align=Align.RIGHT) for title in _TITLES[4:6]),
            Column(title=_TITLES[6], align=Align.RIGHT, priority=2),
            Column(title=_TITLES[7], priority=1),
            Column(title=_TITLES[8], priority=1, shorten=Shorten.MIDDLE, min_width=16),
            Column(title=_TITLES[9], shorten=Shorten.MIDDLE, min_width=16, below=True),
        ),
        rows=tuple(rows),
        total=_sum_row(Cell(text="live at the peak"), len(buffers), live_bytes, total_bytes, total_bytes),
    )


def _padded(buffers: Sequence[LiveBuffer]) -> list[Alike]:
    found = [group for group in group_alike(buffers) if group.first.padding_bytes]
    return sorted(found, key=lambda group: -group.count * group.first.padding_bytes)


def _example(group: Alike) -> str:
    buffer = group.first
    array, takes = array_type(buffer.dtype, buffer.shape), format_exact_bytes(buffer.size_bytes)
    return f"most in {array}: {takes} bytes for {format_exact_bytes(buffer.size_bytes - buffer.padding_bytes)}"


def _sums(group: Alike) -> tuple[int, int, int]:
    return group.count, group.size_bytes, group.count * group.first.padding_bytes


def _row(group: Alike, source: str, total_bytes: int) -> Row:
    buffer, (count, takes, padding) = group.first, _sums(group)
    return Row(
        cells=(
            Cell(text=array_type(buffer.dtype, buffer.shape)),
            aside_cell(array_type(buffer.dtype, buffer.padded) if buffer.padded else ""),
            Cell(text=f"{count:,}"),
            Cell(text=format_bytes(takes - padding)),
            Cell(text=format_bytes(takes)),
            Cell(text=format_bytes(padding)),
            Cell(text=format_share(padding, total_bytes)),
            Cell(text=buffer.category.value, key=buffer.category),
            Cell(text=group.module),
            Cell(text=source),
        )
    )


def _sum_row(label: Cell, count: int, takes: int, padding: int, total_bytes: int) -> Row:
    sums = (f"{count:,}", *map(format_bytes, (takes - padding, takes, padding)), format_share(padding, total_bytes))
    return Row(cells=(label, Cell(text=""), *(Cell(text=each) for each in sums), *(Cell(text=""),) * 3))
