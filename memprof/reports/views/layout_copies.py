"""The copies of a program that only change the layout of an array, with the operations that require them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memprof.analysis.records.device_family import HBM
from memprof.analysis.records.layout_copy import LayoutCopy, Neighbour
from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.report import Report
from memprof.reports.document import Block, Fact, Heading, Table
from memprof.reports.units import format_bytes
from memprof.reports.views.cells import aside_cell, short_names, size_cell
from memprof.reports.views.fields import count, number, share, table, text, total
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
    def module(self) -> str:
        return any_layer(self.first.module) if len(self.members) > 1 else self.first.module

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
    return table(
        groups,
        [
            text("array", lambda group: array_type(group.first.dtype, group.first.shape), min_width=20),
            text("old layout", lambda group: _old_layout(group.first), min_width=14),
            text("new layout", lambda group: group.first.layout or _ROW_BY_ROW, min_width=14),
            count("runs", lambda group: group.num_runs, priority=3),
            number("each", lambda group: format_bytes(group.first.size_bytes), priority=4),
            total("a step", lambda group: group.step_bytes),
            share(lambda group: group.step_bytes, sum(group.step_bytes for group in groups), priority=2),
            total("at peak", lambda group: group.peak_bytes, size_cell, priority=2),
            text("memory", lambda group: aside_cell("" if group.first.space == HBM else group.first.space), priority=3),
            text("module", lambda group: group.module, priority=1, min_width=16),
            text("made by", lambda group: f"from {_in_words(group.first.producer, names)}", min_width=24, below=True),
            text("read by", lambda group: f"for {_in_words(group.first.consumer, names)}", min_width=24, below=True),
        ],
        top=top,
        whole="all copies",
    )


def _group(copies: Sequence[LayoutCopy]) -> list[_Alike]:
    found: dict[tuple[object, ...], list[LayoutCopy]] = {}
    for copy in copies:
        ends = ((any_layer(end.op), end.source, end.role) for end in (copy.producer, copy.consumer))
        arrays = (copy.kind, copy.dtype, copy.old_dtype, copy.shape, copy.layout, copy.old_shape, copy.old_layout)
        found.setdefault((*arrays, copy.space, any_layer(copy.module), *ends), []).append(copy)
    groups = [_Alike(members=tuple(members)) for members in found.values()]
    return sorted(groups, key=lambda group: -group.step_bytes)


def _old_layout(copy: LayoutCopy) -> str:
    """Describe the operand, as far as it differs from the result."""
    old = copy.old_layout or _ROW_BY_ROW
    if copy.old_shape != copy.shape:
        old = f"{array_type('', copy.old_shape)}{copy.old_layout}"
    if copy.old_dtype != copy.dtype:
        old = f"{copy.old_dtype}{old if copy.old_layout else f' {old}'}"
    return old


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
