"""The rows of a comparison: their names and order, their table, and their footprints as bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memprof.analysis.comparison import Effect, FailedRow, ReportComparison
from memprof.analysis.memory.verdict import as_written
from memprof.analysis.records.categories import Category
from memprof.analysis.records.pool import Answer
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.reports.document import Cell, Row, StackedBar, StackedBars, Table, Tone
from memprof.reports.options import Order
from memprof.reports.units import format_bytes, format_flops, format_rate, format_ratio, format_short_seconds
from memprof.reports.views.cells import CATEGORY_GROUPS, aside_cell, change_cell, size_cell, sum_of_group
from memprof.reports.views.fields import Field, number, table, text
from memprof.reports.views.header import TONES, footprint_parts
from memprof.reports.views.mesh import mesh_text

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


def configuration_table(rows: Sequence[ComparedRow], failures: Sequence[FailedRow]) -> Table:
    """Build the table of the rows, followed by the failed rows. Columns that are empty in all rows are omitted."""
    best = best_row(rows)

    def name(row: ComparedRow) -> Cell:
        is_best = best is not None and row is best[0]
        return Cell(text=row.name, key=Tone.ACCENT, is_verdict=True) if is_best else Cell(text=row.name)

    found = table(
        rows,
        [
            text("configuration", name, min_width=20),
            number("footprint", lambda row: format_bytes(row.report.footprint_bytes)),
            number("change", _change),
            number("ratio", lambda row: format_ratio(row.effect.footprint_ratio), priority=2),
            *_sizes(rows),
            *([] if num_devices(rows) == 1 else [text("mesh", _mesh, priority=2)]),
            *_flops(rows),
            *_bounds(rows),
            *_measured(rows),
            text("fits", _fits),
            text("effect", _effect),
        ],
    )
    failed = (Cell(text="failed", key=Tone.BAD, is_verdict=True), *(Cell(text=""),) * (len(found.columns) - 2))
    return replace(found, rows=(*found.rows, *(Row(cells=(Cell(text=failure.label), *failed)) for failure in failures)))


def _sizes(rows: Sequence[ComparedRow]) -> Iterator[Field[ComparedRow]]:
    """Yield the fields of the category groups, and of host memory, which is not part of the footprint."""
    for name, group in CATEGORY_GROUPS.items():
        yield from _amount(rows, name, partial(_size_of_group, group=group), size_cell, _PRIORITIES[name])
    yield from _amount(rows, "host", lambda report: report.program.host_bytes, size_cell, 3)


def _size_of_group(report: Report, *, group: frozenset[Category]) -> int:
    return sum_of_group(report.categories, group)


def _flops(rows: Sequence[ComparedRow]) -> Iterator[Field[ComparedRow]]:
    def shown(flops: int) -> Cell:
        return _or_dash(flops or None, lambda flops: format_flops(int(flops), unit=""))

    yield from _amount(rows, "FLOPs", lambda report: report.flops, shown, 9)
    yield from _amount(rows, "recomputed", lambda report: report.recomputed_flops, shown, 0)


def _amount(
    rows: Sequence[ComparedRow], title: str, of: Callable[[Report], int], show: Callable[[int], Cell], priority: int
) -> Iterator[Field[ComparedRow]]:
    """Yield the field of an amount, unless it is zero in all rows."""
    if any(of(row.report) for row in rows):
        yield number(title, lambda row: show(of(row.report)), priority=priority)


def _bounds(rows: Sequence[ComparedRow]) -> list[Field[ComparedRow]]:
    """Return the field of the lower bound on the step time, if any row has one."""
    best = unbeaten_rows(rows)

    def bound(row: ComparedRow) -> Cell:
        found = row.report.roofline
        cell = _or_dash(None if found is None else found.at_least_seconds, format_short_seconds)
        return replace(cell, key=Tone.GOOD, is_verdict=True) if row in best else cell

    return [number("at least", bound, priority=1)] if any(row.report.roofline for row in rows) else []


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


def _measured(rows: Sequence[ComparedRow]) -> list[Field[ComparedRow]]:
    """Return the fields of step time, throughput and peak, if any row was run.

    Throughput counts tokens if any run has them, otherwise examples.
    """
    runs = [row.report.measured for row in rows if row.report.measured is not None]
    if not runs:
        return []
    has_tokens = any(run.num_tokens is not None for run in runs)

    def throughput(row: ComparedRow) -> Cell:
        run = row.report.measured
        rate = None if run is None else run.per_second(run.num_tokens if has_tokens else run.num_examples)
        return _or_dash(rate, format_rate)

    def peak(row: ComparedRow) -> Cell:
        pool = row.report.measured and row.report.measured.pool
        return size_cell((pool and pool.peak_bytes) or 0)

    return [
        number("step", _step_time),
        number("tokens/s" if has_tokens else "examples/s", throughput, priority=2),
        *([number("measured", peak, priority=1)] if any(run.pool is not None for run in runs) else []),
    ]


def _step_time(row: ComparedRow) -> Cell:
    if row.report.measured is not None and row.report.measured.out_of_memory is not None:
        return Cell(text="out of memory", key=Tone.BAD, is_verdict=True)
    return _or_dash(_step_seconds(row), format_short_seconds)


def _or_dash(value: float | None, show: Callable[[float], str]) -> Cell:
    return aside_cell("-") if value is None else Cell(text=show(value))


def _mesh(row: ComparedRow) -> Cell:
    return Cell(text=mesh_text(row.report.target.topology) or "1 device")


def _change(row: ComparedRow) -> Cell:
    if row.is_reference:
        return aside_cell("reference")
    return change_cell(row.effect.footprint_delta_bytes, none="0 B")


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


def footprint_bars(rows: Sequence[ComparedRow]) -> StackedBars:
    """Draw a bar for each row, with the memory pool as capacity if all rows share it."""
    return StackedBars(bars=tuple(_footprint_bar(row) for row in rows), capacity_bytes=common_capacity(rows))


def _footprint_bar(row: ComparedRow) -> StackedBar:
    size = f"{format_bytes(row.report.footprint_bytes)}  {format_ratio(row.effect.footprint_ratio)}"
    return StackedBar(label=row.name, parts=footprint_parts(row.report), size=size)
