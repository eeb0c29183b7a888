"""Padding, memory without elements: the buffers at the peak by their padding, grouped across layers."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.reports.document import Fact, Table
from memprof.reports.units import format_bytes, format_exact_bytes, format_share
from memprof.reports.views.buffers import Alike, group_alike, places
from memprof.reports.views.cells import aside_cell
from memprof.reports.views.fields import category, count, share, table, text, total


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
    whole = sum(buffer.padding_bytes for buffer in buffers)

    def padded(group: Alike) -> str:
        return array_type(group.first.dtype, group.first.padded) if group.first.padded else ""

    return table(
        _padded(buffers),
        [
            text("array", lambda group: group.array, min_width=16),
            text("padded to", lambda group: aside_cell(padded(group)), min_width=16, priority=4),
            count("count", lambda group: group.count, priority=3),
            total("elements", lambda group: group.size_bytes - group.padding_bytes, priority=3),
            total("takes", lambda group: group.size_bytes),
            total("padding", lambda group: group.padding_bytes),
            share(lambda group: group.padding_bytes, whole, priority=2),
            category(lambda group: group.first.category, priority=1),
            text("module", lambda group: group.module, priority=1, min_width=16),
            text("source", lambda group: names[group.first.source, group.first.library], min_width=16, below=True),
        ],
        top=top,
        num_items=lambda groups: sum(group.count for group in groups),
        whole="live at the peak",
        in_whole=group_alike(buffers),
    )


def _padded(buffers: Sequence[LiveBuffer]) -> list[Alike]:
    found = [group for group in group_alike(buffers) if group.padding_bytes]
    return sorted(found, key=lambda group: -group.padding_bytes)


def _example(group: Alike) -> str:
    buffer = group.first
    array, takes = array_type(buffer.dtype, buffer.shape), format_exact_bytes(buffer.size_bytes)
    return f"most in {array}: {takes} bytes for {format_exact_bytes(buffer.size_bytes - buffer.padding_bytes)}"
