"""From a report to stdout or a file, in the format and at the width asked for."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memprof.errors import MemprofError
from memprof.files import IfTaken, check_writable, write_whole
from memprof.profiler_cli.console import ExitCode, color_system, has_unicode, say, say_error, write
from memprof.profiler_cli.console import width as stdout_width
from memprof.profiler_cli.endings import JSON, TERMINAL, format_for

if TYPE_CHECKING:
    from msgspec import Struct

    from memprof.analysis.comparison import ReportComparison
    from memprof.analysis.records.capture import Capture
    from memprof.analysis.records.report import Report
    from memprof.reports.document import Document
    from memprof.reports.format import Format
    from memprof.reports.options import RenderOptions


_is_verdict_first = False  # set once, before a command does anything


def put_verdict_first() -> None:
    """From now on, reports begin with their verdict."""
    global _is_verdict_first
    _is_verdict_first = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A format, found before the work starts, what it is to show, and the file that it goes to (None: stdout)."""

    format: Format
    options: RenderOptions
    output: Path | None
    if_taken: IfTaken

    def of_capture(self, path: Path | None) -> Rendering:
        """The same, naming the file that the report comes from, if there is one, where more can be had from it."""
        if self.format.name != TERMINAL:
            return self
        return replace(self, options=replace(self.options, capture=str(path or "")))

    def check_shows_documents(self, what: str) -> None:
        """Raises `MemprofError` where the format is for reports alone, as pictures are."""
        if (self.format.lower is None or self.format.is_picture) and self.format.name != JSON:
            raise MemprofError(
                f"{what} is not shown as {self.format.name}: use --format terminal, markdown, html or json"
            )


def rendering(
    name: str | None,
    *,
    width: int | None,
    output: Path | None = None,
    force: bool = False,
    full: bool = True,
    verbose: bool = False,
    **chosen: Any,
) -> Rendering:
    """A format by its name or that of the file, and options as the user gave them.

    Args:
        name: of the format; None: see `format_for`.
        output: a file to write to, instead of stdout.
        force: whether it may be there already.
        full: whether a terminal shows the whole report, and not the first screen of it.
        verbose: whether it shows the configuration.
        chosen: fields of `RenderOptions`; None where the user gave nothing, for which there is a default.

    Raises:
        MemprofError: there is no such format, or what it gives cannot go where it should.
    """
    from memprof.reports.format import format_named
    from memprof.reports.options import RenderOptions

    name = format_for(name, output)
    format_ = format_named(name)
    if output is None and format_.is_file and sys.stdout.isatty():
        raise MemprofError(f"{name} cannot be shown in a terminal: write it to a file with `> report{format_.suffix}`")
    if output is not None:
        check_writable(output, overwrite=force)
    is_terminal = name == TERMINAL
    options = RenderOptions(
        first_screen=is_terminal and not full,
        verdict_first=_is_verdict_first,
        with_configuration=verbose or not is_terminal,
        width=width or stdout_width(),
        color=color_system() if output is None else None,
        unicode=has_unicode() if output is None else True,
        **{field: value for field, value in chosen.items() if value is not None},
    )
    if_taken = IfTaken.REPLACE if force else IfTaken.REFUSE
    return Rendering(format=format_, options=options, output=output, if_taken=if_taken)


def print_report(report: Report, show: Rendering) -> None:
    """Write a report to where it should go, with the savings of changes that were compiled before."""
    from memprof.studies.advice.advise import advise
    from memprof.studies.advice.known import known_changes

    options = show.options
    if options.advice is None and (known := known_changes(report)):
        options = replace(options, advice=advise(report, known))
    _put(show.format.render_report(report, options), show)


def reported_by_process_zero(capture: Capture) -> bool:
    """Whether process 0 of a job reports the run in place of this process, which then says so.

    Raises:
        typer.Exit: this process has run out of memory.
    """
    measured = capture.measured
    if measured is None or measured.process == 0:
        return False
    which = f"process {measured.process} of {measured.num_processes}"
    if measured.out_of_memory is not None:
        say_error(f"{which} ran out of memory: {measured.out_of_memory.message}")
        raise typer.Exit(ExitCode.OUT_OF_MEMORY)
    say(f"{which} has run its part of {capture.label}; process 0 reports on all")
    return True


def end_if_out_of_memory(report: Report) -> None:
    """End the command with the exit code for it where the step ran out of memory; the report has said so."""
    if report.refusal:
        say_error(f"{report.label} does not fit {report.target.name}: {report.refusal}")
        raise typer.Exit(ExitCode.OUT_OF_MEMORY)
    if report.measured is not None and report.measured.out_of_memory is not None:
        say_error(f"{report.label} ran out of memory: {report.measured.out_of_memory.message}")
        raise typer.Exit(ExitCode.OUT_OF_MEMORY)


def print_comparison(comparison: ReportComparison, show: Rendering) -> None:
    """Write a comparison to where it should go."""
    _put(show.format.render_comparison(comparison, show.options), show)


def print_diff(diff: ReportComparison, show: Rendering) -> None:
    """Write a diff to where it should go."""
    _put(show.format.render_diff(diff, show.options), show)


def print_document(document: Document, record: Struct, show: Rendering) -> None:
    """Write what is no report: as a document, or for other programs the record of the same facts as JSON."""
    from memprof.reports.formats.json import render_object

    lower = show.format.lower
    _put(render_object(record) if lower is None else lower(document, show.options), show)


def _put(rendered: str | bytes, show: Rendering) -> None:
    output = show.output
    if output is None:
        write(rendered)
        return
    content = rendered if isinstance(rendered, bytes) else rendered.encode(errors="replace")
    write_whole(output, content, what="the report", if_taken=show.if_taken)
    say(f"report written to {output}")
