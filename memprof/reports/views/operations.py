"""The operations that took the most time in a trace, with the memory that they hold."""

from __future__ import annotations

from memprof.analysis.report import OpCost, Report
from memprof.reports.document import Align, Bar, Block, Cell, Column, Heading, Note, Row, Shorten, Table, Tone
from memprof.reports.units import format_count, format_fraction, format_short_seconds
from memprof.reports.views.cells import aside_cell, more_label, size_cell

_LOOPS = Note(
    tone=Tone.MUTED,
    text="Times are sums over all threads or streams. Loops and calls are left out, since the operations inside them "
    "are in the list.",
)


def operation_blocks(report: Report, *, top: int) -> tuple[Block, ...]:
    """Nothing where no trace was taken."""
    costs = [cost for cost in report.op_costs if not cost.contains_others]
    if not costs or report.measured is None:
        return ()
    num_steps = len(report.measured.step_seconds)
    total = sum(cost.seconds for cost in costs)
    rows = [_row(cost, total, num_steps) for cost in costs[:top]]
    rest = costs[top:]
    if rest:
        seconds = sum(cost.seconds for cost in rest)
        rows.append(_line(aside_cell(more_label(len(rest))), seconds, total, num_steps))
    return (
        Heading(text="Operations that take the most time", level=2, aside="a step, from the trace"),
        Table(
            columns=(
                Column(title="operation", shorten=Shorten.MIDDLE, min_width=16),
                Column(title="time", align=Align.RIGHT),
                Column(title="share", align=Align.RIGHT),
                Column(title="", priority=4, min_width=8),
                Column(title="calls", align=Align.RIGHT, priority=3),
                Column(title="phase", priority=2),
                Column(title="module", priority=1, shorten=Shorten.MIDDLE, min_width=12),
                Column(title="holds", align=Align.RIGHT),
                Column(title="of", priority=1),
            ),
            rows=tuple(rows),
            total=_line(Cell(text="all operations"), total, total, num_steps),
        ),
        _LOOPS,
    )


def _row(cost: OpCost, total: float, num_steps: int) -> Row:
    return Row(
        cells=(
            Cell(text=cost.name),
            *_time(cost.seconds, total, num_steps),
            Cell(text=format_count(round(cost.num_calls / num_steps))),
            Cell(text=cost.phase.value),
            Cell(text=cost.module) if cost.module else aside_cell("-"),
            size_cell(cost.held_bytes),
            Cell(text=cost.category.value, key=cost.category) if cost.category else aside_cell("-"),
        )
    )


def _line(label: Cell, seconds: float, total: float, num_steps: int) -> Row:
    return Row(cells=(label, *_time(seconds, total, num_steps), *(Cell(text=""),) * 5))


def _time(seconds: float, total: float, num_steps: int) -> tuple[Cell | Bar, ...]:
    return (
        Cell(text=format_short_seconds(seconds / num_steps)),
        Cell(text=format_fraction(seconds / total)),
        Bar(value=round(seconds * 1e9)),
    )
