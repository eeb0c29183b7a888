"""The programs compiled elsewhere that `memprof import` finds: the memory of each, and its device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memprof.reports.document import Align, Cell, Column, Document, Row, Shorten, Table
from memprof.reports.views.cells import aside_cell, size_cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedProgram:
    """A program that was found: its file, and the time when it was written, in seconds since 1970."""

    name: str
    device: str
    footprint_bytes: int
    live_peak_bytes: int
    written: float
    file: str


def imported_document(programs: Sequence[ImportedProgram]) -> Document:
    """Build a table of all programs, in the given order."""
    columns = (
        Column(title="program", shorten=Shorten.MIDDLE, min_width=16),
        Column(title="device", priority=1),
        Column(title="footprint", align=Align.RIGHT),
        Column(title="live peak", align=Align.RIGHT, priority=2),
        Column(title="written", priority=3),
        Column(title="file", priority=4),
    )
    rows = [
        Row(
            cells=(
                Cell(text=each.name),
                Cell(text=each.device),
                size_cell(each.footprint_bytes),
                size_cell(each.live_peak_bytes),
                aside_cell(time.strftime("%F %R", time.localtime(each.written))),
                aside_cell(each.file),
            )
        )
        for each in programs
    ]
    return Document(blocks=(Table(columns=columns, rows=tuple(rows)),))
