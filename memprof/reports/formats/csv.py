"""CSV: one row per live buffer, per configuration of a comparison, or per operation and shape of a diff.

The first line contains the titles. Sizes are whole bytes. Texts come from the user's program: unprintable characters
are escaped, which keeps each record on one line, and a text that a spreadsheet would run as a formula (it begins with
`=`, `+`, `-` or `@`) is prefixed with an apostrophe. The JSON format keeps every text unchanged.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from memprof.analysis.comparison import Effect, ReportComparison
from memprof.analysis.records.categories import Category
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

_CONFIGURATION_TITLES = (
    "label",
    "footprint_bytes",
    "footprint_delta_bytes",
    "footprint_ratio",
    *(f"{category.value}_bytes" for category in Category),
    "host_bytes",
    "flops",
    "recomputed_flops",
    "at_least_seconds",
    "fits",
    "answer",
    "pool_bytes",
    "mem_fraction",
    "short_bytes",
    "measured_peak_bytes",
    "resident_growth_bytes",
    "step_seconds_median",
    "examples_per_second",
    "tokens_per_second",
    "mfu",
    "out_of_memory",
    "took_effect",
    "evidence",
    "failure",
)


def render_report(report: Report, options: RenderOptions) -> str:
    """Render all buffers that are live at the peak, largest first. Shapes are JSON lists."""
    return _table(BufferJson.__struct_fields__, _records(report.buffers, BufferJson), ascii_only=not options.unicode)


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str:
    """Render the configurations in their given order. A failed configuration has a reason instead of numbers."""
    rows = zip(comparison.rows, comparison.effects, strict=True)
    records: list[Record] = [_configuration(report, effect) for report, effect in rows]
    records += [{"label": failure.label, "failure": failure.reason} for failure in comparison.failures]
    return _table(_CONFIGURATION_TITLES, records, ascii_only=not options.unicode)


def render_diff(diff: ReportComparison, options: RenderOptions) -> str:
    """Render the buffers of both reports, matched by operation and shape, the largest change first."""
    records = _records(diff.buffers, MatchedBuffersJson)
    return _table(MatchedBuffersJson.__struct_fields__, records, ascii_only=not options.unicode)


def _records(rows: Sequence[object], kind: type[Struct]) -> Iterator[Record]:
    """Convert rows to records with the fields of the JSON format."""
    for row in rows:
        values: dict[str, Any] = to_builtins(convert(row, kind, from_attributes=True))
        yield {title: json.dumps(value) if isinstance(value, tuple) else value for title, value in values.items()}


def _configuration(report: Report, effect: Effect) -> Record:
    return {
        "label": report.label,
        "footprint_bytes": report.footprint_bytes,
        "footprint_delta_bytes": effect.footprint_delta_bytes,
        "footprint_ratio": effect.footprint_ratio,
        **{f"{category.value}_bytes": report.categories[category] for category in Category},
        "host_bytes": report.program.host_bytes,
        "flops": report.flops,
        "recomputed_flops": report.recomputed_flops,
        "at_least_seconds": report.roofline.at_least_seconds if report.roofline else None,
        "fits": report.fits,
        "answer": report.verdict.answer.value,
        "pool_bytes": report.verdict.pool_bytes,
        "mem_fraction": report.verdict.mem_fraction,
        "short_bytes": report.verdict.short_bytes,
        **_measured(report),
        "took_effect": effect.took_effect,
        "evidence": effect.evidence,
    }


def _measured(report: Report) -> Record:
    measured = report.measured
    if measured is None:
        return {}
    return {
        "measured_peak_bytes": measured.pool.peak_bytes if measured.pool else None,
        "resident_growth_bytes": measured.resident.growth_bytes if measured.resident else None,
        "step_seconds_median": measured.median_seconds,
        "examples_per_second": measured.per_second(measured.num_examples),
        "tokens_per_second": measured.per_second(measured.num_tokens),
        "mfu": measured.utilization(report.flops - report.recomputed_flops),
        "out_of_memory": measured.out_of_memory is not None,
    }


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
