"""From a report to stdout, in the format and at the width asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memprof.analysis.comparison import Comparison
from memprof.analysis.report import Report
from memprof.profiler_cli.console import color_system, has_unicode, write
from memprof.profiler_cli.console import width as stdout_width
from memprof.reports.format import Format, RenderOptions
from memprof.reports.registry import format_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A format, found before the work starts, and what it is to show."""

    format: Format
    options: RenderOptions


def rendering(name: str, *, width: int | None, **chosen: Any) -> Rendering:
    """A format by its name, and options as the user gave them.

    Args:
        chosen: fields of `RenderOptions`; None where the user gave nothing, for which there is a default.

    Raises:
        MemprofError: there is no such format.
    """
    options = RenderOptions(
        width=width or stdout_width(),
        color=color_system(),
        unicode=has_unicode(),
        **{field: value for field, value in chosen.items() if value is not None},
    )
    return Rendering(format=format_named(name), options=options)


def print_report(report: Report, show: Rendering) -> None:
    """Write a report to stdout."""
    write(show.format.render_report(report, show.options))


def print_comparison(comparison: Comparison, show: Rendering) -> None:
    """Write a comparison to stdout."""
    write(show.format.render_comparison(comparison, show.options))
