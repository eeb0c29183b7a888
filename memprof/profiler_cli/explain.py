"""`memprof explain`: why a run ended out of memory, by its log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.endings import is_capture
from memprof.profiler_cli.render import print_document, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.report import Report

_STDIN = "-"
_MOST_BYTES = 256 << 20
_Log = Annotated[str, typer.Argument(help="What the run wrote to stderr; - for stdin.", metavar="LOG")]
_Programs = Annotated[
    list[Path],
    typer.Option(
        "--program", help="What may have run: captures, or what `memprof import` takes; repeatable.", metavar="PATH"
    ),
]


def explain(
    log: _Log,
    program: _Programs = [],  # noqa: B006 - Typer copies it
    format: options.Format = None,  # noqa: A002 - the option's name
    output: options.ReportFile = None,
    force: options.Force = False,
    top: options.Top = None,
    width: options.Width = None,
) -> None:
    """Say why a run ended out of memory: what was asked for, what was free, and what the largest buffers are.

    It reads the messages of XLA for GPUs, TPUs and the CPU, as JAX has shown them from version 0.4 on. With the
    program, it says which buffer that is.

        memprof explain slurm-1234.out --program dump

        python train.py 2>&1 | memprof explain -
    """
    from memprof.reports.json.runs import explanation_json
    from memprof.reports.views.explain import explanation_document, sentences
    from memprof.studies.explain.explanation import explain as explain_log
    from memprof.studies.explain.log import read_log

    show = rendering(format, output=output, force=force, top=top, width=width)
    show.check_shows_documents("an explanation")
    explanation = explain_log(read_log(_text(log)), _programs(program))
    record = explanation_json(explanation, sentences(explanation))
    print_document(explanation_document(explanation, top=show.options.top), record, show)


def _text(log: str) -> str:
    """The log as text, whatever bytes are in it.

    Raises:
        MemprofError: it cannot be read, or is too large.
    """
    from memprof.untrusted import open_regular

    try:
        if log == _STDIN:
            content = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with open_regular(Path(log)) as file:
                content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise MemprofError(f"the log {log} cannot be read: {error.strerror or error}") from error
    if len(content) > _MOST_BYTES:
        raise MemprofError(f"the log {log} has more than {_MOST_BYTES:,} bytes; give the part around the error")
    return content.decode(errors="replace")


def _programs(paths: list[Path]) -> list[Report]:
    from memprof.analysis.pipeline import analyze
    from memprof.capture.capture_file import read_capture
    from memprof.capture.foreign.dumps import programs_in
    from memprof.capture.foreign.importing import import_program

    captures = [read_capture(path) for path in paths if is_capture(str(path))]
    dumps = [path for path in paths if not is_capture(str(path))]
    captures += [import_program(found, roles={}, target=None) for found in programs_in(dumps)]
    return [analyze(capture) for capture in captures]
