"""`memprof explain`: why a run ended out of memory, by its log."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.endings import CAPTURE_SUFFIX, is_capture
from memprof.profiler_cli.render import print_document, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.pool import PoolSettings
    from memprof.analysis.records.report import Report
    from memprof.studies.explain.records import OutOfMemory

_STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_Log = Annotated[str, typer.Argument(help="The stderr of the run, also gzipped; - for stdin.", metavar="LOG")]
_Programs = Annotated[
    list[Path],
    typer.Option(
        "--program",
        help="Programs that may have run: captures, a folder of captures from `memprof watch`, or inputs of "
        "`memprof import`; repeatable.",
        metavar="PATH",
    ),
]


@options.with_groups
def explain(
    log: _Log,
    program: _Programs = [],  # noqa: B006 - Typer copies it
    pool: options.Pool = None,
    output: options.ReportFile = None,
    force: options.Force = False,
    top: options.HiddenTop = None,
    *,
    shown: options.ShownOptions,
) -> None:
    """Explain why a run ended out of memory, from its log.

    It reads XLA's messages for GPUs, TPUs and the CPU, as JAX shows them since version 0.4. With --program, it names
    the buffer.

        memprof explain slurm-1234.out --program dump

        python train.py 2>&1 | memprof explain -
    """
    from memprof.reports.json.runs import explanation_json
    from memprof.reports.views.explain import explanation_document, sentences
    from memprof.studies.explain.explanation import explain as explain_log

    show = rendering(shown.format, output=output, force=force, top=top, width=shown.width)
    show.check_shows_documents("an explanation")
    explanation = explain_log(_read(log), _programs(program, options.chosen_pool(pool)))
    record = explanation_json(explanation, sentences(explanation))
    print_document(explanation_document(explanation, top=show.options.top), record, show)


def _read(log: str) -> OutOfMemory:
    """Read the log, from a file, a named pipe or stdin, whatever bytes are in it; gzip is decompressed.

    Raises:
        MemprofError: it cannot be read, or has no out-of-memory error.
    """
    from memprof.studies.explain.log import read_log

    try:
        with _open(log) as file:
            content = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP_MAGIC else file
            with io.TextIOWrapper(content, encoding="utf-8", errors="replace") as text:
                return read_log(text)
    except (OSError, EOFError, zlib.error) as error:
        raise MemprofError(f"cannot read the log {log}: {getattr(error, 'strerror', None) or error}") from error


def _open(log: str) -> io.BufferedReader:
    from memprof.untrusted import open_regular

    if log == _STDIN:
        return io.BufferedReader(io.FileIO(sys.stdin.fileno(), closefd=False))
    is_pipe = stat.S_ISFIFO(os.stat(log).st_mode)
    return open(log, "rb") if is_pipe else open_regular(Path(log))


def _programs(paths: list[Path], pool: PoolSettings | None) -> list[Report]:
    from memprof.analysis.pipeline import analyze
    from memprof.sources.capture_file import read_capture
    from memprof.sources.dumps.dumps import programs_in
    from memprof.sources.dumps.importing import import_program

    files = [file for path in paths for file in (_captures_in(path) or [path])]
    reports = [analyze(read_capture(file), pool=pool) for file in files if is_capture(str(file))]
    for found in programs_in([file for file in files if not is_capture(str(file))]):
        fresh = import_program(found, roles={}, target=None)
        reports.append(analyze(fresh.capture, fresh.decoded, pool=pool))
    return reports


def _captures_in(folder: Path) -> list[Path]:
    """The captures that lie in a folder, as `memprof watch` writes them; none for a file or for a dump of XLA."""
    return sorted(file for file in folder.glob(f"*{CAPTURE_SUFFIX}") if file.is_file())
