"""The rows of a comparison: their names and order, their table, and their footprints as bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from memprof.analysis.comparison import Effect, FailedRow, ReportComparison
from memprof.analysis.memory.verdict import as_written
from memprof.analysis.records.categories import Category
from memprof.analysis.records.pool import Answer
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.reports.document import Align, Cell, Column, Row, Shorten, StackedBar, StackedBars, Table, Tone
from memprof.reports.options import Order
from memprof.reports.units import format_bytes, format_flops, format_rate, format_ratio, format_short_seconds
from memprof.reports.views.cells import CATEGORY_GROUPS, aside_cell, change_cell, size_cell, sum_of_group
from memprof.reports.views.header import TONES, footprint_parts
from memprof.reports.views.mesh import mesh_text

_NAME = Column(title="configuration", shorten=Shorten.MIDDLE, min_width=20)
# If room is short, the highest priority is dropped first. Columns that decide a choice (0) are never dropped.
_PRIORITIES = {"acts": 3, "optim": 4, "temps": 5, "grads": 6, "params": 7, "cache": 7, "other": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One configuration. `name` is its label, without the workload if all rows share it."""

    name: str
    report: Report
    effect: Effect
    is_reference: bool


def compared_rows(comparison: ReportComparison, order: Order) -> tuple[ComparedRow, ...]:
    """Return the rows with their effects, in the given order or sorted in ascending order.

    Raises:
        MemprofError: the rows are to be sorted by step time, but none was run.
    """
    rows = tuple(
        ComparedRow(
            name=row_name(comparison, report.label),
            report=report,
            effect=effect,
            is_reference=report.label == comparison.baseline,
        )
        for report, effect in zip(comparison.rows, comparison.effects, strict=True)
    )
    for row in rows:
        assert sum(row.effect.categories_delta.values()) == row.effect.footprint_delta_bytes, row.name
    match order:
        case Order.GIVEN:
            return rows
        case Order.FOOTPRINT:
            return tuple(sorted(rows, key=lambda row: row.report.footprint_bytes))
        case Order.RECOMPUTED:
            return tuple(sorted(rows, key=lambda row: row.report.recomputed_flops))
        case Order.STEP:
            if rows and not any(map(_step_seconds, rows)):
                raise MemprofError("--sort step applies to rows that were run: give --steps, or sort by footprint")
            return tuple(sorted(rows, key=lambda row: _step_seconds(row) or math.inf))


def _step_seconds(row: ComparedRow) -> float | None:
    return None if row.report.measured is None else row.report.measured.median_seconds


def best_row(rows: Sequence[ComparedRow]) -> tuple[ComparedRow, str] | None:
    """Choose the best row that fits: the fastest if any was run, otherwise the smallest.

    Rows whose technique took no effect are ignored.

    Returns:
        The row and the reason; None if no row fits, or there is only one row.
    """
    fitting = [row for row in rows if row.report.fits and row.effect.took_effect is not False]
    if not fitting or len(rows) == 1:
        return None
    timed = [row for row in fitting if _step_seconds(row)]
    if timed:
        return min(timed, key=lambda row: _step_seconds(row) or math.inf), "the fastest row that fits"
    return min(fitting, key=lambda row: row.report.footprint_bytes), "the smallest footprint that fits"


def row_name(comparison: ReportComparison, label: str) -> str:
    """Shorten `transformer bf16+scan` to `bf16+scan` if all rows have the workload `transformer`."""
    prefixes = {f"{row.workload} " for row in comparison.rows}
    if len(prefixes) != 1 or not all(_is_long(row.label, *prefixes) for row in comparison.rows):
        return label
    (prefix,) = prefixes
    return label.removeprefix(prefix) if _is_long(label, prefix) else label


def reference_row(rows: Sequence[ComparedRow]) -> ComparedRow:
    """Return the row that the others are compared with."""
    return next(row for row in rows if row.is_reference)


def common_capacity(rows: Sequence[ComparedRow]) -> int | None:
    """Return the size of the memory pool in bytes; None if the rows differ in it or it is unknown."""
    capacities = {row.report.verdict.pool_bytes for row in rows}
    return capacities.pop() if len(capacities) == 1 else None


def num_devices(rows: Sequence[ComparedRow]) -> int | None:
    """Return the number of devices that share a step; None if the rows differ in it."""
    counts = {row.report.target.topology.num_devices for row in rows}
    return counts.pop() if len(counts) == 1 else None


def _is_long(label: str, prefix: str) -> bool:
    return label.startswith(prefix) and label != prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A column, and the function that makes its cell for a row."""

    column: Column
    cell: Callable[[ComparedRow], Cell]


def configuration_table(rows: Sequence[ComparedRow], failures: Sequence[FailedRow]) -> Table:
    """Build the table of the rows, followed by the failed rows. Columns that are empty in all rows are omitted."""
    fields = [
        _Field(column=_number("footprint"), cell=_footprint),
        _Field(column=_number("change"), cell=_change),
        _Field(column=_number("ratio", priority=2), cell=_ratio),
        *_sizes(rows),
        *_meshes(rows),
        *_flops(rows),
        *_bounds(rows),
        *_measured(rows),
        _Field(column=Column(title="fits"), cell=_fits),
        _Field(column=Column(title="effect"), cell=_effect),
    ]
    best = best_row(rows)
    return Table(
        columns=(_NAME, *(field.column for field in fields)),
        rows=(
            *(
                Row(
                    cells=(
                        _name(row, is_best=best is not None and row is best[0]),
                        *(each.cell(row) for each in fields),
                    )
                )
                for row in rows
            ),
            *(_failed_row(failure.label, num_empty=len(fields) - 1) for failure in failures),
        ),
    )


def _name(row: ComparedRow, *, is_best: bool) -> Cell:
    return Cell(text=row.name, key=Tone.ACCENT, is_verdict=True) if is_best else Cell(text=row.name)


def _meshes(rows: Sequence[ComparedRow]) -> list[_Field]:
    """Return the column of mesh axes, if any row has several devices."""
    if num_devices(rows) == 1:
        return []
    return [_Field(column=Column(title="mesh", priority=2), cell=_mesh)]


def _sizes(rows: Sequence[ComparedRow]) -> list[_Field]:
    """Return the columns of the category groups, and of host memory, which is not part of the footprint."""
    found = [
        _Field(column=_number(name, priority=_PRIORITIES[name]), cell=partial(_group, group=group))
        for name, group in CATEGORY_GROUPS.items()
        if any(sum_of_group(row.report.categories, group) for row in rows)
    ]
    if any(row.report.program.host_bytes for row in rows):
        host = _Field(column=_number("host", priority=3), cell=lambda row: size_cell(row.report.program.host_bytes))
        found.append(host)
    return found


def _flops(rows: Sequence[ComparedRow]) -> list[_Field]:
    counts: dict[str, tuple[Callable[[Report], int], int]] = {
        "FLOPs": (lambda report: report.flops, 9),
        "recomputed": (lambda report: report.recomputed_flops, 0),
    }
    return [
        _Field(column=_number(title, priority=priority), cell=partial(_count, count=count))
        for title, (count, priority) in counts.items()
        if any(count(row.report) for row in rows)
    ]


def _bounds(rows: Sequence[ComparedRow]) -> list[_Field]:
    """Return the column of the lower bound on the step time, if any row has one."""
    if not any(row.report.roofline for row in rows):
        return []
    best = unbeaten_rows(rows)
    return [_Field(column=_number("at least", priority=1), cell=partial(_bound, unbeaten=best))]


def unbeaten_rows(rows: Sequence[ComparedRow]) -> tuple[ComparedRow, ...]:
    """Return the Pareto-optimal rows: no other row is better in footprint or bound without being worse in the other."""
    points = {
        row.name: (row.report.footprint_bytes, row.report.roofline.at_least_seconds)
        for row in rows
        if row.report.roofline is not None
    }

    def beats(one: tuple[int, float], other: tuple[int, float]) -> bool:
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    return tuple(
        row
        for row in rows
        if row.name in points and not any(beats(other, points[row.name]) for other in points.values())
    )


def _bound(row: ComparedRow, *, unbeaten: Sequence[ComparedRow]) -> Cell:
    bound = row.report.roofline
    if bound is None:
        return aside_cell("-")
    text = format_short_seconds(bound.at_least_seconds)
    return Cell(text=text, key=Tone.GOOD, is_verdict=True) if row in unbeaten else Cell(text=text)


def _measured(rows: Sequence[ComparedRow]) -> list[_Field]:
    """Return the columns of step time, throughput and peak, if any row was run.

    Throughput counts tokens if any run has them, otherwise examples.
    """
    runs = [row.report.measured for row in rows if row.report.measured is not None]
    if not runs:
        return []
    has_tokens = any(run.num_tokens is not None for run in runs)
    fields = [
        _Field(column=_number("step"), cell=_step_time),
        _Field(
            column=_number("tokens/s" if has_tokens else "examples/s", priority=2),
            cell=partial(_throughput, has_tokens=has_tokens),
        ),
    ]
    if any(run.pool is not None for run in runs):
        fields.append(_Field(column=_number("measured", priority=1), cell=_measured_peak))
    return fields


def _step_time(row: ComparedRow) -> Cell:
    measured = row.report.measured
    if measured is None:
        return aside_cell("-")
    if measured.out_of_memory is not None:
        return Cell(text="out of memory", key=Tone.BAD, is_verdict=True)
    seconds = measured.median_seconds
    return aside_cell("-") if seconds is None else Cell(text=format_short_seconds(seconds))


def _throughput(row: ComparedRow, *, has_tokens: bool) -> Cell:
    measured = row.report.measured
    if measured is None:
        return aside_cell("-")
    rate = measured.per_second(measured.num_tokens if has_tokens else measured.num_examples)
    return aside_cell("-") if rate is None else Cell(text=format_rate(rate))


def _measured_peak(row: ComparedRow) -> Cell:
    pool = row.report.measured.pool if row.report.measured else None
    return aside_cell("-") if pool is None or pool.peak_bytes is None else size_cell(pool.peak_bytes)


def _number(title: str, *, priority: int = 0) -> Column:
    return Column(title=title, align=Align.RIGHT, priority=priority)


def _mesh(row: ComparedRow) -> Cell:
    return Cell(text=mesh_text(row.report.target.topology) or "1 device")


def _footprint(row: ComparedRow) -> Cell:
    return Cell(text=format_bytes(row.report.footprint_bytes))


def _ratio(row: ComparedRow) -> Cell:
    return Cell(text=format_ratio(row.effect.footprint_ratio))


def _change(row: ComparedRow) -> Cell:
    if row.is_reference:
        return aside_cell("reference")
    return change_cell(row.effect.footprint_delta_bytes, none="0 B")


def _group(row: ComparedRow, *, group: frozenset[Category]) -> Cell:
    return size_cell(sum_of_group(row.report.categories, group))


def _count(row: ComparedRow, *, count: Callable[[Report], int]) -> Cell:
    flops = count(row.report)
    return Cell(text=format_flops(flops, unit="")) if flops else aside_cell("-")


def _fits(row: ComparedRow) -> Cell:
    verdict = row.report.verdict
    if verdict.answer is Answer.UNKNOWN:
        return aside_cell("-")
    text = {
        Answer.FITS: "yes",
        Answer.FITS_WITH: f"with {as_written(verdict.mem_fraction or 0.0)}",
        Answer.DOES_NOT_FIT: "no",
    }[verdict.answer]
    return Cell(text=text, key=TONES[verdict.answer], is_verdict=True)


def _effect(row: ComparedRow) -> Cell:
    if row.effect.took_effect is None:
        return aside_cell("unclear" if row.effect.evidence else "-")
    text, tone = ("yes", Tone.GOOD) if row.effect.took_effect else ("flagged", Tone.BAD)
    return Cell(text=text, key=tone, is_verdict=True)


def _failed_row(name: str, *, num_empty: int) -> Row:
    verdict = Cell(text="failed", key=Tone.BAD, is_verdict=True)
    return Row(cells=(Cell(text=name), verdict, *(Cell(text=""),) * num_empty))


def footprint_bars(rows: Sequence[ComparedRow]) -> StackedBars:
    """Draw a bar for each row, with the memory pool as capacity if all rows share it."""
    return StackedBars(bars=tuple(_footprint_bar(row) for row in rows), capacity_bytes=common_capacity(rows))


def _footprint_bar(row: ComparedRow) -> StackedBar:
    size = f"{format_bytes(row.report.footprint_bytes)}  {format_ratio(row.effect.footprint_ratio)}"
    return StackedBar(label=row.name, parts=footprint_parts(row.report), size=size)
