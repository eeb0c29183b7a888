"""JSON: all facts for other programs, in schemas with a version (`docs/schema/`)."""

from __future__ import annotations

import json

from memprof.analysis.comparison import Comparison
from memprof.analysis.diff import Diff
from memprof.analysis.report import Report
from memprof.reports.format import Format
from memprof.reports.json_objects import Json, comparison_object, diff_object, report_object
from memprof.reports.options import RenderOptions

_ENCODER = json.JSONEncoder(allow_nan=False)


def render_report(report: Report, options: RenderOptions) -> str:
    """The report as one JSON object. What the options leave out of a view does not matter: data are never shortened."""
    return _text(report_object(report, options.advice), levels=2)


def render_comparison(comparison: Comparison, options: RenderOptions) -> str:
    """The comparison as one JSON object, whatever the options."""
    del options
    return _text(comparison_object(comparison), levels=4)


def render_diff(diff: Diff, options: RenderOptions) -> str:
    """The diff as one JSON object, whatever the options."""
    del options
    return _text(diff_object(diff), levels=2)


def render_object(value: Json) -> str:
    """Any other JSON object, as the reports are written."""
    return _text(value, levels=2)


def _text(value: Json, *, levels: int) -> str:
    """A line for each buffer and each module: indenting them too would take several times as long, and as much room."""
    return _indented(value, levels=levels, indent="") + "\n"


def _indented(value: Json, *, levels: int, indent: str) -> str:
    if not levels or not value or not isinstance(value, dict | list):
        return _ENCODER.encode(value)
    inner = f"{indent} "
    if isinstance(value, dict):
        items = [
            f"{_ENCODER.encode(key)}: {_indented(item, levels=levels - 1, indent=inner)}" for key, item in value.items()
        ]
    else:
        items = [_indented(item, levels=levels - 1, indent=inner) for item in value]
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
