"""XLA's plan: the scheduled program with its buffer assignment, which it dumps before it generates code.

What memory a step takes is decided there, and generating code is often more than half of a compile. So a step that will
not run is compiled in a thread until its plan is complete on disk; the process then takes what it needs and ends, and
the compile with it. Beside the plan XLA writes a report of its own on memory, with the total of each memory space,
which the plan that was read is held against.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from memprof.analysis.buffer_table import BufferTable, decode_buffer_table
from memprof.analysis.checks import check_memory_spaces
from memprof.analysis.hlo_proto import parse_memory_report, parse_proto
from memprof.analysis.program import Program
from memprof.analysis.program_decoding import decode_program
from memprof.errors import InternalError, MemprofError

_PLAN, _MEMORY_REPORT = "*_after_optimizations.hlo.pb", "*_after_optimizations-memory-usage-report.pb"
_PAUSE_SECONDS = 0.02


def compile_to_plan(compile_step: Callable[[], Any], folder: Path) -> None:
    """Start a compile, and return as soon as its plan is in the folder of its dump, with the compile still running.

    A plan that is complete is the answer, whatever becomes of the compile after it.

    Args:
        compile_step: the compile, with its dump; called in a thread that nobody waits for.
        folder: an empty folder for the dump; it need not be there yet.

    Raises:
        Exception: the compile failed, and its plan is not complete.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            compile_step()
        except Exception as error:  # raised again by the thread that waits
            errors.append(error)

    compiling = threading.Thread(target=run, name="compile", daemon=True)
    compiling.start()
    has_ended = False
    while not has_ended:
        compiling.join(_PAUSE_SECONDS)
        has_ended = not compiling.is_alive()  # asked before the plan is looked for, which may come in between
        if _is_complete(folder):
            return
    for error in errors:
        raise error


def read_plan(folder: Path) -> tuple[bytes, Program, BufferTable]:
    """Read the program that XLA wrote, and decode it before anything is made of it.

    Returns:
        The bytes of the `HloProto`, and the program and the buffer assignment in it.

    Raises:
        MemprofError: it is not there, or was cut short.
        InternalError: it does not hold together.
    """
    plans = list(folder.glob(_PLAN))
    if not plans:
        raise MemprofError(
            f"XLA could not write its program to {folder}: the disk may be full, files be limited in size"
            " (`ulimit -f`), or the step's code have removed that folder"
        )
    if len(plans) != 1:
        raise InternalError(f"XLA wrote {len(plans)} optimized programs where one was expected")
    data = plans[0].read_bytes()
    cut_short = MemprofError(
        f"XLA's dump of the program in {folder} is cut short after {len(data):,} bytes: the disk may be full,"
        " or files be limited in size (`ulimit -f`); make room, or set TMPDIR to another folder"
    )
    try:
        proto = parse_proto(data)
        reports = [parse_memory_report(path.read_bytes()) for path in folder.glob(_MEMORY_REPORT)]
    except MemprofError as error:
        raise cut_short from error
    if not proto.HasField("buffer_assignment"):  # it comes last: cut off just before it, the rest can be parsed
        raise cut_short
    program = decode_program(proto)
    table = decode_buffer_table(proto, program)
    for report in reports:
        check_memory_spaces(table, report)
    return data, program, table


def _is_complete(folder: Path) -> bool:
    """Whether XLA has written both files and closed them: a file is open from its creation to its last byte."""
    try:
        files = {_identity(file.stat()) for pattern in (_PLAN, _MEMORY_REPORT) for file in folder.glob(pattern)}
    except FileNotFoundError:  # the user's code removes files under our feet
        return False
    return len(files) == 2 and files.isdisjoint(_open_files())


def _open_files() -> Iterator[tuple[int, int]]:
    for descriptor in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed since
            yield _identity(os.fstat(int(descriptor)))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
