"""JSON: all facts for other programs, in versioned schemas (`docs/schema/`)."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct, to_builtins

from memprof.analysis.comparison import ReportComparison
from memprof.analysis.records.report import Report
from memprof.reports.format import Format
from memprof.reports.json.report import report_json
from memprof.reports.options import RenderOptions

_ENCODER = json.JSONEncoder(allow_nan=False)


def render_report(report: Report, options: RenderOptions) -> str:
    """Render the report as one JSON object. It always contains all facts, whatever the options."""
    return render_object(report_json(report, options.advice))


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str:
    """Render the comparison as one JSON object, whatever the options."""
    from memprof.reports.json.comparison import comparison_json

    del options
    return render_object(comparison_json(comparison), levels=4)


def render_diff(diff: ReportComparison, options: RenderOptions) -> str:
    """Render the diff as one JSON object, whatever the options."""
    from memprof.reports.json.comparison import diff_json

    del options
    return render_object(diff_json(diff))


def render_object(record: Struct, *, levels: int = 2) -> str:
    """Encode a record as JSON text.

    Each buffer and each module takes one line: indenting them too would multiply the time and the size. Python's
    encoder writes the text, because msgspec formats spaces, floats and escapes differently from earlier reports.

    Args:
        record: the record.
        levels: the number of indented levels.
    """
    return indented(to_builtins(record), levels=levels) + "\n"


def indented(value: Any, *, levels: int, indent: str = "") -> str:
    """Encode plain values as JSON text with `levels` indented levels."""
    if not levels or not value or not isinstance(value, dict | tuple):
        return _ENCODER.encode(value)
    inner = f"{indent} "
    if isinstance(value, dict):
        items = [
            f"{_ENCODER.encode(key)}: {indented(item, levels=levels - 1, indent=inner)}" for key, item in value.items()
        ]
    else:
        items = [indented(item, levels=levels - 1, indent=inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    separator = f",\n{inner}"
    return f"{opening}\n{inner}{separator.join(items)}\n{indent}{closing}"


FORMAT = Format(
    name="json",
    suffix=".json",
    summary="the whole report for other programs, in a versioned schema",
    render_report=render_report,
    render_comparison=render_comparison,
    render_diff=render_diff,
)
