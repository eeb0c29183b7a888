"""Every name that a report prints finds its buffers."""

from __future__ import annotations

import pytest
from reports_data import REPORTS

from memprof.analysis.memory.named_buffers import buffers_named
from memprof.analysis.records.report import Report
from memprof.reports.document import Bar, Table
from memprof.reports.options import By, RenderOptions
from memprof.reports.views.buffers import buffer_table, largest_buffers_table, largest_groups_table
from memprof.reports.views.report import by_document

pytestmark = pytest.mark.with_one_jax

_NAMES = {"array", "largest", "category", "module", "source", "op", "stack", "dtype", "phase"}
# The bytes between buffers, the own part of a row, and rows of what is left.
_OF_NO_BUFFER = ("fragmentation", "(itself)", "(no dtype)", "(no module)", "(no phase)", "(no source line)", "more)")


def _printed(report: Report) -> set[str]:
    tables = [table(report.buffers, top=60) for table in (buffer_table, largest_buffers_table, largest_groups_table)]
    for by in By:
        tables += [
            block
            for block in by_document(report, by, RenderOptions(depth=9, top=60)).blocks
            if isinstance(block, Table)
        ]
    return {
        cell.text
        for table in tables
        for row, _ in table.rows_with_depth()
        for cell, column in zip(row.cells, table.columns, strict=True)
        if column.title in _NAMES and not isinstance(cell, Bar) and cell.text
    }


@pytest.mark.parametrize("name", list(REPORTS))
@pytest.mark.slow_cases
def test_every_name_in_the_tables_finds_buffers(name: str) -> None:
    report = REPORTS[name]()
    names = {text for text in _printed(report) if not text.endswith(_OF_NO_BUFFER)}
    assert names or not report.buffers
    assert [text for text in sorted(names) if not buffers_named(report.buffers, text)] == []
