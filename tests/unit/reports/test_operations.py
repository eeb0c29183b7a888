"""The table of the operations that took the most time."""

from __future__ import annotations

from dataclasses import replace

from reports_data import REPORTS

from memprof.reports.document import Bar, Cell, Heading, Row, Table
from memprof.reports.views.measured import operation_blocks


def _texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells if isinstance(cell, Cell)]


def _table(top: int) -> Table:
    heading, table, _ = operation_blocks(REPORTS["measured_on_gpu"](), top=top)
    assert isinstance(heading, Heading)
    assert isinstance(table, Table)
    return table


def test_without_a_trace_there_is_no_table() -> None:
    assert operation_blocks(REPORTS["measured_on_cpu"](), top=10) == ()
    assert operation_blocks(replace(REPORTS["measured_on_gpu"](), measured=None), top=10) == ()


def test_times_and_calls_are_of_one_step_and_loops_are_left_out() -> None:
    table = _table(top=10)
    # Four steps: 60 ms make 15 a step, of 20; 8 calls make 2.
    assert [_texts(row) for row in table.rows] == [
        ["fusion.3", "15.0 ms", "75.0%", "2", "forward", "mlp", "1.00 KiB", "activations"],
        ["no_buffer", "5.00 ms", "25.0%", "1", "none", "-", "-", "-"],
    ]
    assert table.total is not None
    assert _texts(table.total)[:3] == ["all operations", "20.0 ms", "100.0%"]


def test_what_is_left_out_is_one_row() -> None:
    table = _table(top=1)
    assert _texts(table.rows[1])[:3] == ["(1 more)", "5.00 ms", "25.0%"]
    bars = [cell.value for row in table.rows for cell in row.cells if isinstance(cell, Bar)]
    assert bars == [60_000_000, 20_000_000]
