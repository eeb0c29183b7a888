"""The programs compiled elsewhere that `memprof import` finds: the memory of each, and its device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memprof.reports.document import Document
from memprof.reports.views.cells import aside_cell, size_cell
from memprof.reports.views.fields import Fields, number, table, text


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
    fields: Fields[ImportedProgram] = (
        text("program", lambda each: each.name, min_width=16),
        text("device", lambda each: each.device, priority=1),
        number("footprint", lambda each: size_cell(each.footprint_bytes)),
        number("live peak", lambda each: size_cell(each.live_peak_bytes), priority=2),
        text("written", lambda each: aside_cell(time.strftime("%F %R", time.localtime(each.written))), priority=3),
        text("file", lambda each: aside_cell(each.file), priority=4),
    )
    return Document(blocks=(table(programs, fields),))
