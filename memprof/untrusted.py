r"""Read files that someone else may have written, or that a disk may have damaged.

Captures and baselines travel between machines and people, so their content is untrusted. It is checked here once, as it
is read: its size, its types and ranges, and control characters in its texts, which could affect a terminal. Later code
relies on these checks.

    data = open_regular(path).read(1 << 20)
    record = as_record(parse_json(data), Baseline)
    label = clean("\x1b[31mred")                   # "\\x1b[31mred"
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import threading
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from memprof.errors import MemprofError

_Record = TypeVar("_Record")

MAX_BYTES = 2**62  # the sum of three such amounts still fits into an unsigned 64-bit integer
_MAX_SECONDS = 1e12
_MAX_QUOTED = 200
_ZERO_WIDTH_JOINER = "\u200d"  # harmless, and part of many emoji
# msgspec inspects a class on the first conversion to it; two threads that do so at once crash the process
# (msgspec 0.22).
_CONVERSION = threading.Lock()

# Field types of the records that are read from files. `Text` is a name or a sentence; `Words` may be longer.
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=_MAX_SECONDS)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Words = Annotated[str, msgspec.Meta(max_length=1 << 16)]
Dimensions = Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]


class UnfitError(Exception):
    """The content of a file does not have the expected form; the message says where."""


def clean(text: str) -> str:
    r"""Escape (`\x1b`) every character that would control a terminal, hide text or change its direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == _ZERO_WIDTH_JOINER else _escape(char) for char in text)


def quote(text: object) -> str:
    """Format a value from a file for a message: cleaned, shortened to about 200 characters, texts in quotes."""
    shown = clean(str(text))
    shown = shown if len(shown) <= _MAX_QUOTED else f"{shown[:_MAX_QUOTED]}..."
    return f"'{shown}'" if isinstance(text, str) else shown


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, without blocking on a pipe or device.

    Raises:
        MemprofError: the path is a device, a pipe or the like.
        OSError: the file cannot be opened; for a folder, `IsADirectoryError`.
    """
    # Without O_NONBLOCK, opening a pipe that has no writer blocks forever.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise MemprofError(f"{path} is a device, a pipe or the like; give a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def parse_json(data: bytes) -> Any:
    """Parse a JSON text into plain values, with every string cleaned (see `clean`).

    Raises:
        UnfitError: the text is not JSON, or is nested too deeply.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnfitError(f"it is not JSON: {_first_line(error)}") from error
    if isinstance(found, str):
        return clean(found)
    pending = [found]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            _clean_keys(value)
        places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for place, item in places:
            if isinstance(item, (dict, list)):
                pending.append(item)
            elif isinstance(item, str) and not item.isprintable():
                value[place] = clean(item)
    return found


def as_record(value: Any, kind: type[_Record]) -> _Record:
    """Convert plain values to a record of the given type. Keys that are not fields of the record are skipped.

    Raises:
        UnfitError: a field is missing, has another type, or is out of range.
    """
    try:
        return convert(value, kind, str_keys=True, builtin_types=(bytes,))
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnfitError(_first_line(error)) from error


def convert(value: Any, kind: type[_Record], **options: Any) -> _Record:
    """Call `msgspec.convert` under a lock, in one thread at a time."""
    with _CONVERSION:
        converted: _Record = msgspec.convert(value, kind, **options)
    return converted


def _first_line(error: Exception) -> str:
    return clean(str(error).partition("\n")[0])[:_MAX_QUOTED]


def _clean_keys(value: dict[str, Any]) -> None:
    for key in [key for key in value if not key.isprintable()]:
        value[clean(key)] = value.pop(key)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
