"""The interface of an output format, and the list of all formats.

A format renders a whole report, or a comparison of several. A format that shows documents is made with
`document_format`: the options select a view, the view builds the document, and the format lowers it. A format that
serialises facts (json, csv) takes them directly. A new format needs only a new file in `formats/` that exposes
`FORMAT`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from memprof.analysis.comparison import ReportComparison
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.reports import formats as _package
from memprof.reports.document import Document
from memprof.reports.options import RenderOptions
from memprof.reports.views.comparison import comparison_document
from memprof.reports.views.diff import diff_document
from memprof.reports.views.first_screen import first_screen_document
from memprof.reports.views.report import by_document, summary_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One output format of reports.

    Attributes:
        name: the value of `--format`.
        suffix: the suffix of files in this format, with its dot.
        summary: one line for `--help` and the docs.
        render_report: renders a report; the output ends in one newline.
        render_comparison: renders several reports side by side. Raises `MemprofError` if it has no such view.
        render_diff: renders the changes from one report to another.
        is_file: whether the output is for other programs and unreadable on a terminal.
        is_picture: whether the output shows only the main charts, and therefore omits some numbers.
        compares_sums: whether a comparison shows only sums of each report (`Report.sums`).
        lower: renders any other document; None for a format that shows no documents.
    """

    name: str
    suffix: str
    summary: str
    render_report: Callable[[Report, RenderOptions], str | bytes]
    render_comparison: Callable[[ReportComparison, RenderOptions], str | bytes]
    render_diff: Callable[[ReportComparison, RenderOptions], str | bytes]
    lower: Callable[[Document, RenderOptions], str | bytes] | None = None
    is_file: bool = False
    is_picture: bool = False
    compares_sums: bool = False


def document_format(
    *,
    name: str,
    suffix: str,
    summary: str,
    lower: Callable[[Document, RenderOptions], str | bytes],
    is_file: bool = False,
    is_picture: bool = False,
) -> Format:
    """Make a format that lowers documents. The arguments are the attributes of `Format`."""

    def render_report(report: Report, options: RenderOptions) -> str | bytes:
        return lower(report_document(report, options), options)

    def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str | bytes:
        return lower(comparison_document(comparison, options), options)

    def render_diff(diff: ReportComparison, options: RenderOptions) -> str | bytes:
        return lower(diff_document(diff, options), options)

    return Format(
        name=name,
        suffix=suffix,
        summary=summary,
        render_report=render_report,
        render_comparison=render_comparison,
        render_diff=render_diff,
        lower=lower,
        is_file=is_file,
        is_picture=is_picture,
        compares_sums=True,
    )


def report_document(report: Report, options: RenderOptions) -> Document:
    """Build the document that the options select."""
    if options.first_screen:
        return first_screen_document(report, options)
    return summary_document(report, options) if options.by is None else by_document(report, options.by, options)


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats, sorted by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(_package.__path__))
    modules = (importlib.import_module(f"{_package.__name__}.{name}") for name in names)
    return tuple(module.FORMAT for module in modules)


def format_named(name: str) -> Format:
    """Return the format of a name.

    Raises:
        MemprofError: the format does not exist; the message lists all formats.
    """
    for candidate in formats():
        if candidate.name == name:
            return candidate
    allowed = ", ".join(candidate.name for candidate in formats())
    raise MemprofError(f"There is no format {name!r}. Use one of: {allowed}.")
