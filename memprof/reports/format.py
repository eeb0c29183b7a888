"""What a format is, and which there are.

A format renders a whole report, or a comparison of several. One that shows documents is made with `document_format`:
the view picked by the options makes the document, and the format lowers it. One that serialises facts (json, csv) takes
them as they are. A new one is a new file in `formats/` that exposes `FORMAT`; nothing else changes.
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
    """One way to write a report down.

    Attributes:
        name: what `--format` takes.
        suffix: of a file in this format, with its dot.
        summary: one line for `--help` and the docs.
        render_report: the whole output, ending in one newline.
        render_comparison: the same for several reports side by side. Raises `MemprofError` where there is no such view.
        render_diff: the same for what changed from one report to another.
        is_file: whether the output is for a file and another program, and would only be noise on a terminal.
        is_picture: whether it shows the main charts alone, and so not every number.
        lower: any other document in this format; None for a format that shows no documents.
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


def document_format(
    *,
    name: str,
    suffix: str,
    summary: str,
    lower: Callable[[Document, RenderOptions], str | bytes],
    is_file: bool = False,
    is_picture: bool = False,
) -> Format:
    """A format that lowers documents."""

    def render_report(report: Report, options: RenderOptions) -> str | bytes:
        return lower(report_document(report, options), options)

    def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str | bytes:
        document = comparison_document(
            comparison,
            by=options.by,
            depth=options.depth,
            top=options.top,
            order=options.order,
            with_configuration=options.with_configuration,
        )
        return lower(document, options)

    def render_diff(diff: ReportComparison, options: RenderOptions) -> str | bytes:
        return lower(diff_document(diff, by=options.by, depth=options.depth, top=options.top), options)

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
    )


def report_document(report: Report, options: RenderOptions) -> Document:
    """The document that the options ask for."""
    if options.first_screen:
        return first_screen_document(
            report,
            options.advice_for(report),
            whole_advice=options.with_advice,
            with_configuration=options.with_configuration,
            capture=options.capture,
            advise_command=options.advise_command,
            verdict_first=options.verdict_first,
        )
    if options.by is None:
        advice = options.advice_for(report) if options.with_advice else None
        return summary_document(
            report,
            depth=options.depth,
            top=options.top,
            advice=advice,
            with_configuration=options.with_configuration,
        )
    return by_document(report, by=options.by, depth=options.depth, top=options.top, capture=options.capture)


@cache
def formats() -> tuple[Format, ...]:
    """All formats, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(_package.__path__))
    modules = (importlib.import_module(f"{_package.__name__}.{name}") for name in names)
    return tuple(module.FORMAT for module in modules)


def format_named(name: str) -> Format:
    """The format called `name`.

    Raises:
        MemprofError: there is none; the message names those that there are.
    """
    for candidate in formats():
        if candidate.name == name:
            return candidate
    allowed = ", ".join(candidate.name for candidate in formats())
    raise MemprofError(f"There is no format {name!r}. Use one of: {allowed}.")
