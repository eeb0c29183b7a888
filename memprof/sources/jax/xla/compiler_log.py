"""Warnings that XLA's partitioner writes to stderr during a compile; the capture includes them.

    with kept_stderr(folder):
        compiled = lowered.compile()
    partitioner_messages(folder)  # ("Involuntary full rematerialization. The compiler cannot go from ...",)

XLA writes to the process's file descriptor, which is redirected to a file during the compile. All other output is
copied to stderr afterwards. If the process dies in the compile, the file remains and shows the reason.
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
_MAX_MESSAGES, _MAX_CHARACTERS, _MAX_BYTES = 100, 1 << 13, 16 << 20


@contextmanager
def kept_stderr(folder: Path) -> Iterator[None]:
    """Redirect stderr to a file in a folder; create the folder if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / LOG_FILE).open("ab")
        stderr = os.dup(2)
    except OSError:  # the disk is full, which XLA will report, or there is no stderr
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
    """Discard all output to stderr, including that of native libraries."""
    try:
        stderr = os.dup(2)
    except OSError:  # there is no stderr
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
    """Return the distinct messages of XLA's partitioner in a folder's file; empty if the file is missing."""
    found = (match.group(1) for line in _lines(folder) if (match := _MESSAGE.match(line)))
    return tuple(dict.fromkeys(clean(text)[:_MAX_CHARACTERS] for text in found))[:_MAX_MESSAGES]


def _lines(folder: Path) -> list[str]:
    try:
        with (folder / LOG_FILE).open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):  # the user's code may have closed or replaced it
        sys.stderr.flush()
