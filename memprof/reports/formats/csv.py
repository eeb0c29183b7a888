"""CSV: one row per live buffer, per configuration of a comparison, or per operation and shape of a diff.

The first line contains the titles. Sizes are whole bytes. Texts come from the user's program: unprintable characters
are escaped, which keeps each record on one line, and a text that a spreadsheet would run as a formula (it begins with
`=`, `+`, `-` or `@`) is prefixed with an apostrophe. The JSON format keeps every text unchanged.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from memprof.analysis.comparison import Effect, ReportComparison
from memprof.analysis.records.categories import Category
from memprof.analysis.records.measurement import Measurement
from memprof.analysis.records.report import Report
from memprof.reports.format import Format
from memprof.reports.json.comparison import MatchedBuffersJson
from memprof.reports.json.report import BufferJson
from memprof.reports.options import RenderOptions
from memprof.reports.text import printable
from memprof.untrusted import convert

_STARTS_FORMULA = ("=", "+", "-", "@")

Field = str | int | float | bool | None
Record = Mapping[str, Field]


def _of_measured(value: Callable[[Report, Measurement], Field]) -> Callable[[Report, Effect], Field]:
    """Return a column that is empty if the configuration was not measured."""
    return lambda report, effect: None if report.measured is None else value(report, report.measured)


_OF_CONFIGURATION: Mapping[str, Callable[[Report, Effect], Field]] = {
    "label": lambda report, effect: report.label,
    "footprint_bytes": lambda report, effect: report.footprint_bytes,
    "footprint_delta_bytes": lambda report, effect: effect.footprint_delta_bytes,
    "footprint_ratio": lambda report, effect: effect.footprint_ratio,
    **{
        f"{category.value}_bytes": lambda report, effect, category=category: report.categories[category]  # type: ignore[misc]
        for category in Category
    },
    "host_bytes": lambda report, effect: report.program.host_bytes,
    "flops": lambda report, effect: report.flops,
    "recomputed_flops": lambda report, effect: report.recomputed_flops,
    "at_least_seconds": lambda report, effect: report.roofline.at_least_seconds if report.roofline else None,
    "fits": lambda report, effect: report.fits,
    "answer": lambda report, effect: report.verdict.answer.value,
    "pool_bytes": lambda report, effect: report.verdict.pool_bytes,
    "mem_fraction": lambda report, effect: report.verdict.mem_fraction,
    "short_bytes": lambda report, effect: report.verdict.short_bytes,
    "measured_peak_bytes": _of_measured(lambda report, run: run.pool.peak_bytes if run.pool else None),
    "resident_growth_bytes": _of_measured(lambda report, run: run.resident.growth_bytes if run.resident else None),
    "step_seconds_median": _of_measured(lambda report, run: run.median_seconds),
    "examples_per_second": _of_measured(lambda report, run: run.per_second(run.num_examples)),
    "tokens_per_second": _of_measured(lambda report, run: run.per_second(run.num_tokens)),
    "mfu": _of_measured(lambda report, run: run.utilization(report.flops - report.recomputed_flops)),
    "out_of_memory": _of_measured(lambda report, run: run.out_of_memory is not None),
    "took_effect": lambda report, effect: effect.took_effect,
    "evidence": lambda report, effect: effect.evidence,
}


def render_report(report: Report, options: RenderOptions) -> str:
    """Render all buffers that are live at the peak, largest first. Shapes are JSON lists."""
    return _table(BufferJson.__struct_fields__, _records(report.buffers, BufferJson), ascii_only=not options.unicode)


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str:
    """Render the configurations in their given order. A failed configuration has a reason instead of numbers."""
    rows = zip(comparison.rows, comparison.effects, strict=True)
    records: list[Record] = [
        {title: value(report, effect) for title, value in _OF_CONFIGURATION.items()} for report, effect in rows
    ]
    records += [{"label": failure.label, "failure": failure.reason} for failure in comparison.failures]
    return _table((*_OF_CONFIGURATION, "failure"), records, ascii_only=not options.unicode)


def render_diff(diff: ReportComparison, options: RenderOptions) -> str:
    """Render the buffers of both reports, matched by operation and shape, the largest change first."""
    records = _records(diff.buffers, MatchedBuffersJson)
    return _table(MatchedBuffersJson.__struct_fields__, records, ascii_only=not options.unicode)


def _records(rows: Sequence[object], kind: type[Struct]) -> Iterator[Record]:
    """Convert rows to records with the fields of the JSON format."""
    for row in rows:
        values: dict[str, Any] = to_builtins(convert(row, kind, from_attributes=True))
        yield {title: json.dumps(value) if isinstance(value, tuple) else value for title, value in values.items()}


def _table(titles: tuple[str, ...], records: Iterable[Record], *, ascii_only: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([_written(record.get(title), ascii_only=ascii_only) for title in titles] for record in records)
    return text.getvalue()


def _written(value: Field, *, ascii_only: bool) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str():
            text = printable(value, ascii_only=ascii_only)
            return f"'{text}" if text.startswith(_STARTS_FORMULA) else text
        case _:
            return str(value)


FORMAT = Format(
    name="csv",
    suffix=".csv",
    summary="one row per buffer, or per configuration of a comparison, for spreadsheets and data frames",
    render_report=render_report,
    render_comparison=render_comparison,
    render_diff=render_diff,
    compares_sums=True,
)
