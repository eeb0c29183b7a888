"""What XLA's partitioner says while it compiles: warnings on stderr, which are a part of the answer.

    with kept_stderr(folder):
        compiled = lowered.compile()
    partitioner_messages(folder)  # ("Involuntary full rematerialization. The compiler cannot go from ...",)

XLA writes to the process's file descriptor, which is that of a file in the meantime. What is none of these messages is
written to stderr afterwards, so that it stands where it would have stood. Of a process that goes down with the compile,
the file is there for whoever looks for the reason.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memprof.untrusted import clean

LOG_FILE = "stderr.txt"
# `W1122 14:43:31.736932   24803 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. ...`
_MESSAGE = re.compile(r"^\S.*\.cc:\d+\] \[spmd\] (.+)$", re.IGNORECASE)
_MOST_MESSAGES, _MOST_CHARACTERS, _MOST_BYTES = 100, 1 << 13, 16 << 20


@contextmanager
def kept_stderr(folder: Path) -> Iterator[None]:
    """Keep what is written to stderr in a file of a folder, which is made where it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / LOG_FILE).open("ab")
        stderr = os.dup(2)
    except OSError:  # there is no room, as XLA is about to find out, or no stderr
        yield
        return
    _flush()
    with log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        _flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        rest = [line for line in _lines(folder) if not _MESSAGE.match(line)]
        with suppress(OSError, ValueError):
            sys.stderr.write("".join(f"{line}\n" for line in rest))
            sys.stderr.flush()


@contextmanager
def muted_stderr() -> Iterator[None]:
    """Discard what is written to stderr, also by libraries that are no Python."""
    try:
        stderr = os.dup(2)
    except OSError:  # there is none
        yield
        return
    _flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        _flush()
        os.dup2(stderr, 2)
        os.close(stderr)


def partitioner_messages(folder: Path) -> tuple[str, ...]:
    """The messages of XLA's partitioner in the file of a folder, each once; none where there is no file."""
    found = (match.group(1) for line in _lines(folder) if (match := _MESSAGE.match(line)))
    return tuple(dict.fromkeys(clean(text)[:_MOST_CHARACTERS] for text in found))[:_MOST_MESSAGES]


def _lines(folder: Path) -> list[str]:
    try:
        with (folder / LOG_FILE).open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):  # the user's code may have closed or replaced it
        sys.stderr.flush()
