"""From a report to stdout, in the format and at the width asked for."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.report import Report
from memprof.profiler_cli.console import color_system, has_unicode, write
from memprof.profiler_cli.console import width as stdout_width
from memprof.reports.format import Format, RenderOptions
from memprof.reports.registry import format_named
from memprof.reports.views.by import By


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A format, found before the work starts, and what it is to show."""

    format: Format
    options: RenderOptions


def rendering(name: str, *, by: By | None, depth: int | None, top: int | None, width: int | None) -> Rendering:
    """Options as the user gave them (None: not given) with the defaults filled in.

    Raises:
        MemprofError: there is no such format.
    """
    given = {"depth": depth, "top": top}
    options = RenderOptions(
        by=by,
        width=width or stdout_width(),
        color=color_system(),
        unicode=has_unicode(),
        **{name: value for name, value in given.items() if value is not None},
    )
    return Rendering(format=format_named(name), options=options)


def print_report(report: Report, show: Rendering) -> None:
    """Write a report to stdout."""
    write(show.format.render_report(report, show.options))
