"""The footprints as stacked bars on one scale: the comparison at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.reports.document import StackedBar, StackedBars
from memprof.reports.units import format_bytes, format_ratio
from memprof.reports.views.compare.rows import ComparedRow, common_capacity
from memprof.reports.views.header import footprint_parts


def footprint_bars(rows: Sequence[ComparedRow]) -> StackedBars:
    """A bar for each row, against the target's memory where all have the same."""
    return StackedBars(bars=tuple(_bar(row) for row in rows), capacity_bytes=common_capacity(rows))


def _bar(row: ComparedRow) -> StackedBar:
    size = f"{format_bytes(row.report.footprint_bytes)}  {format_ratio(row.effect.footprint_ratio)}"
    return StackedBar(label=row.name, parts=footprint_parts(row.report), size=size)
