"""The copies of a program that only change the layout of an array, with the operations that require them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memprof.analysis.records.device_family import HBM
from memprof.analysis.records.layout_copy import LayoutCopy, Neighbour
from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.report import Report
from memprof.reports.document import Align, Block, Cell, Column, Fact, Heading, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import aside_cell, more_label, short_names, size_cell
from memprof.reports.views.layers import any_layer

_ROW_BY_ROW = "row by row"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Copies that differ only in their layer number."""

    members: tuple[LayoutCopy, ...]

    @property
    def first(self) -> LayoutCopy:
        return self.members[0]

    @property
    def num_runs(self) -> int:
        return sum(copy.num_runs for copy in self.members)

    @property
    def step_bytes(self) -> int:
        return sum(copy.step_bytes for copy in self.members)

    @property
    def peak_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self.members if copy.is_at_peak)


def layout_copy_facts(report: Report) -> tuple[Fact, ...]:
    """List the bytes that the copies write and hold at the peak, and the largest copy; empty if there are no copies."""
    copies = report.layout_copies
    if not copies:
        return ()
    largest = _group(copies)[0]
    at_peak = sum(copy.size_bytes for copy in copies if copy.is_at_peak)
    least = "at least " if any(copy.is_at_least for copy in copies) else ""
    count = f"{len(copies):,} {'copy' if len(copies) == 1 else 'copies'}"
    values = (
        f"{count}, {least}{format_bytes(report.layout_copy_bytes)} a step",
        *((f"{format_bytes(at_peak)} live at the peak",) if at_peak else ()),
        f"most in {_array(largest.first)}",
    )
    return (Fact(label="layout copies", values=values),)


def layout_copy_blocks(report: Report, *, top: int) -> tuple[Block, ...]:
    """Build the section; empty if there are no copies."""
    if not report.layout_copies:
        return ()
    heading = Heading(text="Copies that only change the layout", level=2, aside="similar ones of all layers combined")
    return (heading, layout_copy_table(report.layout_copies, top=top))


def layout_copy_table(copies: Sequence[LayoutCopy], *, top: int) -> Table:
    """Build a table of the copies that write most in a step, with producers and consumers. The total is over all."""
    groups = _group(copies)
    names = short_names(source for copy in copies for source in (copy.producer.source, copy.consumer.source))
    total_bytes = sum(group.step_bytes for group in groups)
    rows = [_row(group, names, total_bytes) for group in groups[:top]]
    if groups[top:]:
        rows.append(_sum_row(aside_cell(more_label(len(groups) - top)), groups[top:], total_bytes))
    return Table(
        columns=(
            Column(title="array", shorten=Shorten.MIDDLE, min_width=20),
            Column(title="old layout", shorten=Shorten.MIDDLE, min_width=14),
            Column(title="new layout", shorten=Shorten.MIDDLE, min_width=14),
            Column(title="runs", align=Align.RIGHT, priority=3),
            Column(title="each", align=Align.RIGHT, priority=4),
            Column(title="a step", align=Align.RIGHT),
            Column(title="share", align=Align.RIGHT, priority=2),
            Column(title="at peak", align=Align.RIGHT, priority=2),
            Column(title="memory", priority=3),
            Column(title="module", priority=1, shorten=Shorten.MIDDLE, min_width=16),
            Column(title="made by", shorten=Shorten.MIDDLE, min_width=24, below=True),
            Column(title="read by", shorten=Shorten.MIDDLE, min_width=24, below=True),
        ),
        rows=tuple(rows),
        total=_sum_row(Cell(text="all copies"), groups, total_bytes),
    )


def _group(copies: Sequence[LayoutCopy]) -> list[_Alike]:
    found: dict[tuple[object, ...], list[LayoutCopy]] = {}
    for copy in copies:
        ends = ((any_layer(end.op), end.source, end.role) for end in (copy.producer, copy.consumer))
        arrays = (copy.kind, copy.dtype, copy.old_dtype, copy.shape, copy.layout, copy.old_shape, copy.old_layout)
        found.setdefault((*arrays, copy.space, any_layer(copy.module), *ends), []).append(copy)
    groups = [_Alike(members=tuple(members)) for members in found.values()]
    return sorted(groups, key=lambda group: -group.step_bytes)


def _row(group: _Alike, names: Mapping[str, str], total_bytes: int) -> Row:
    copy = group.first
    old = copy.old_layout or _ROW_BY_ROW
    if copy.old_shape != copy.shape:
        old = f"{array_type('', copy.old_shape)}{copy.old_layout}"
    if copy.old_dtype != copy.dtype:
        old = f"{copy.old_dtype}{old if copy.old_layout else f' {old}'}"
    return Row(
        cells=(
            Cell(text=array_type(copy.dtype, copy.shape)),
            Cell(text=old),
            Cell(text=copy.layout or _ROW_BY_ROW),
            Cell(text=f"{group.num_runs:,}"),
            Cell(text=format_bytes(copy.size_bytes)),
            Cell(text=format_bytes(group.step_bytes)),
            Cell(text=format_share(group.step_bytes, total_bytes)),
            size_cell(group.peak_bytes),
            aside_cell("" if copy.space == HBM else copy.space),
            Cell(text=any_layer(copy.module) if len(group.members) > 1 else copy.module),
            Cell(text=f"from {_in_words(copy.producer, names)}"),
            Cell(text=f"for {_in_words(copy.consumer, names)}"),
        )
    )


def _sum_row(label: Cell, groups: Sequence[_Alike], total_bytes: int) -> Row:
    step_bytes = sum(group.step_bytes for group in groups)
    empty = Cell(text="")
    return Row(
        cells=(
            *(label, empty, empty),
            Cell(text=f"{sum(group.num_runs for group in groups):,}"),
            empty,
            Cell(text=format_bytes(step_bytes)),
            Cell(text=format_share(step_bytes, total_bytes)),
            size_cell(sum(group.peak_bytes for group in groups)),
            *(empty,) * 4,
        )
    )


def _in_words(end: Neighbour, names: Mapping[str, str]) -> str:
    """Describe the producer or consumer of an array: `dot_general (blocks.py:70)`."""
    if end.role == "result":
        return "the step's result"
    if end.role == "unknown":
        return "unknown"
    if end.role == "argument":
        return f"argument {end.op}"
    op = end.op.rpartition("/")[2] or end.name
    return f"{op} ({names[end.source]})" if end.source else op


def _array(copy: LayoutCopy) -> str:
    old = copy.old_layout or _ROW_BY_ROW
    if copy.kind == "copy":
        return f"{array_type(copy.dtype, copy.shape)}: {old} to {copy.layout or _ROW_BY_ROW}"
    return f"{array_type(copy.dtype, copy.old_shape)}: {copy.kind} to {array_type(copy.dtype, copy.shape)}"
