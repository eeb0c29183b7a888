"""The footprint by source code, as trees: files with functions and lines, and Python call stacks."""

from __future__ import annotations

from collections.abc import Iterable

from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.reports.document import Cell, Column, Row, Shorten, Table
from memprof.reports.views.cells import aside_cell, more_label, share_cells, share_columns, share_total
from memprof.reports.views.hierarchies import (
    NO_SOURCE,
    Path,
    Paths,
    Weighted,
    function_name,
    grouped,
    place,
    total_bytes,
)


def source_table(report: Report, *, top: int) -> Table:
    """Build a table of the footprint by file, function and line of the user's own code, largest first."""
    paths = Paths(report)

    def path(buffer: LiveBuffer) -> Path:
        frame = place(buffer)
        if frame is None:
            return (NO_SOURCE,)
        function = function_name(frame)
        return (paths.file_name(frame.file), *([function] if function else []), f"line {frame.line}")

    return _tree_table("source", report, map(path, report.buffers), top=top, joined_by=", ")


def stack_table(report: Report, *, top: int) -> Table:
    """Build a table of the footprint by call stack, outermost call first. Chains of single calls share a row."""
    paths = Paths(report)
    return _tree_table("stack", report, map(paths.stack, report.buffers), top=top, joined_by=" > ")


def _tree_table(title: str, report: Report, paths: Iterable[Path], *, top: int, joined_by: str) -> Table:
    weighted = [(path, buffer.size_bytes) for path, buffer in zip(paths, report.buffers, strict=True)]
    fragmentation = report.footprint_bytes - report.live_peak_bytes
    if fragmentation:
        weighted.append(((NO_SOURCE,), fragmentation))
    return Table(
        columns=(Column(title=title, shorten=Shorten.MIDDLE, min_width=44), *share_columns()),
        rows=_rows(weighted, report.footprint_bytes, top=top, joined_by=joined_by),
        total=share_total("footprint", report.footprint_bytes),
    )


def _rows(weighted: Weighted, footprint_bytes: int, *, top: int, joined_by: str) -> tuple[Row, ...]:
    """Make the rows of a tree.

    Args:
        weighted: paths with their bytes.
        footprint_bytes: the footprint, for the shares.
        top: the number of rows below each row; the rest is summed up in one.
        joined_by: the separator of names that share a row.
    """
    groups = grouped(weighted)
    rows = [_row(name, members, footprint_bytes, top=top, joined_by=joined_by) for name, members in groups[:top]]
    rest = sum(total_bytes(members) for _, members in groups[top:])
    if rest:
        rows.append(Row(cells=(aside_cell(more_label(len(groups) - top)), *share_cells(rest, footprint_bytes))))
    return tuple(rows)


def _row(name: str, members: Weighted, footprint_bytes: int, *, top: int, joined_by: str) -> Row:
    names = [name]
    while members[0][0] and all(path[:1] == members[0][0][:1] for path, _ in members):
        names.append(members[0][0][0])
        members = [(path[1:], size_bytes) for path, size_bytes in members]
    label = aside_cell(name) if name == NO_SOURCE else Cell(text=joined_by.join(names))
    return Row(
        cells=(label, *share_cells(total_bytes(members), footprint_bytes)),
        children=_rows(members, footprint_bytes, top=top, joined_by=joined_by),
    )
