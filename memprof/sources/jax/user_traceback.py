"""Display of exceptions: the first line, and the traceback reduced to frames of the user's own code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

_STANDARD_LIBRARY = tuple(str(Path(sysconfig.get_paths()[name])) for name in ("stdlib", "platstdlib"))
# Packages of this environment, of a nested one, or of the user's site.
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_OURS = str(Path(__file__).resolve().parents[2])
# memprof's modules with models, whose lines are shown like the user's own.
_MODELS = re.compile(r"[/\\]memprof[/\\]workloads[/\\](?:models|networks)[/\\]")

# A traceback of infinite recursion, or an XLA error that quotes the program, can have thousands of lines.
_MAX_LINES = 60
_MAX_LINE_LENGTH = 500
_MAX_FIRST_LINE_LENGTH = 200
_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"[\w.]+: .")  # `ValueError: its message`, at the end of a traceback


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, for use in a sentence; empty if it has no message.

    Where XLA quotes the traceback of a Python function that it called, the error of the function takes its place.
    """
    lines = message_of(error).strip().splitlines()
    before, quotes, _ = lines[0].partition(_TRACEBACK) if lines else ("", "", "")
    quoted = [line for line in lines[1:] if _RAISED.match(line)] if quotes else []
    line = printable(f"{before}{quoted[0]}" if quoted else next(iter(lines), ""))
    return line if len(line) <= _MAX_FIRST_LINE_LENGTH else f"{line[:_MAX_FIRST_LINE_LENGTH]}..."


def message_of(error: BaseException) -> str:
    """Return an exception's message; empty if its `__str__`, which may be the user's code, raises."""
    try:
        return str(error)
    except Exception:
        return ""


def printable(text: str) -> str:
    """Remove the characters that a terminal would interpret as commands."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def shortened(text: str) -> str:
    """Shorten a text for display: omit the middle of many lines, and the ends of long lines."""
    lines = [
        line if len(line) <= _MAX_LINE_LENGTH else f"{line[:_MAX_LINE_LENGTH]}..."
        for line in printable(text).splitlines()
    ]
    if len(lines) > _MAX_LINES:
        half = _MAX_LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half:,} more lines ...", *lines[-half:]]
    return "\n".join(lines)


def user_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, without the frames of libraries and of memprof.

    If JAX fails long after it has traced the user's code, it attaches the frames of that trace to the error as its
    cause. They are then shown as the origin of the error. If no frame is the user's, only the error is shown.
    """
    shown = traceback.TracebackException.from_exception(error, compact=True)
    frames = _user_frames(shown)
    before = shown.__cause__ or shown.__context__
    if not frames and before is not None:
        frames = _user_frames(before)
    if not frames:
        return shortened("".join(shown.format_exception_only()))
    shown.stack = traceback.StackSummary.from_list(frames)
    shown.__cause__ = shown.__context__ = None
    return shortened("".join(shown.format()))


def user_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code in a traceback, as `train.py:12`, or an empty string."""
    frames = _user_frames(traceback.TracebackException.from_exception(error, compact=True))
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def is_of_user_code(error: BaseException) -> bool:
    """Whether the traceback of an exception includes a line of the user's own code."""
    return any(_is_users(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def _user_frames(shown: traceback.TracebackException) -> list[traceback.FrameSummary]:
    return [frame for frame in shown.stack if _is_users(frame.filename)]


def _is_users(filename: str) -> bool:
    if _MODELS.search(filename):
        return True
    return not (filename.startswith(("<", _OURS, *_STANDARD_LIBRARY)) or _PACKAGES.search(filename))
