"""The records of a watched script in a work folder, which the command reads: plain records, written immediately.

    call-4012-3.msgpack     a call of a jitted function that was traced anew, and its arguments
    call-4012-3.step        the same call as a capture without its program, if memprof could follow it
    compile-4012-7/         one compile: `compile.msgpack`, and `dump/`, where XLA wrote the program; for another
                            target the inputs of the compile, which the command runs
    live-4012.jsonl         the arrays on the device of one process, at intervals
    end.msgpack             how the script ended
    options.json            the watcher's options, written by the command
    process                 the id of the script's own process
    page                    see `shared_page.py`

A script may be killed at any moment, so each existing record counts. The module needs no JAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from memprof.analysis.records.watched import Ending, LiveArrays, SeenCall, SeenCompile

CALL, STEP = "call-{}.msgpack", "call-{}.step"
COMPILING, COMPILE = "compile-{}", "compile.msgpack"
LIVE, END, OPTIONS, PROCESS = "live-{}.jsonl", "end.msgpack", "options.json", "process"
MIN_FREE_BYTES = 64 * 2**20  # for XLA's dump; XLA prints errors to stderr if it cannot write one
_Record = TypeVar("_Record")


def write(path: Path, record: object) -> None:
    """Write a record atomically."""
    write_bytes(path, msgspec.msgpack.encode(record))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def read(path: Path, kind: type[_Record]) -> _Record:
    """Read a record."""
    return msgspec.msgpack.decode(path.read_bytes(), type=kind)


def read_ending(folder: Path) -> Ending | None:
    """Read how the script ended, or return None if it was killed."""
    path = folder / END
    return read(path, Ending) if path.exists() else None


def read_calls(folder: Path) -> dict[str, SeenCall]:
    """Read the calls, by id."""
    calls = [read(path, SeenCall) for path in folder.glob(CALL.format("*"))]
    return {call.id: call for call in calls}


def read_compiles(folder: Path) -> Iterator[tuple[SeenCompile, Path]]:
    """Read the compiles in order, each with its folder."""
    found = [(read(path, SeenCompile), path.parent) for path in folder.glob(f"{COMPILING.format('*')}/{COMPILE}")]
    yield from sorted(found, key=lambda pair: pair[0].began)


def read_live(folder: Path) -> list[LiveArrays]:
    """Read the samples of the process with the most samples, in order, without a truncated last line."""
    files = [path.read_bytes().split(b"\n")[:-1] for path in sorted(folder.glob(LIVE.format("*")))]
    return [msgspec.json.decode(line, type=LiveArrays) for line in max(files, key=len, default=[])]
