"""What is shown of an exception: its first line, and its traceback cut to the frames of the user's own code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

_STANDARD_LIBRARY = tuple(str(Path(sysconfig.get_paths()[name])) for name in ("stdlib", "platstdlib"))
# Of this environment, of one beneath it, or of the user's site.
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_OURS = str(Path(__file__).resolve().parents[1])
# Modules of memprof that hold models, whose lines are as good as the user's own.
_MODELS = re.compile(r"[/\\]memprof[/\\]workloads[/\\](?:models|networks)[/\\]")

# A traceback of endless recursion, and an error of XLA that quotes the program, have thousands of lines.
_MAX_LINES = 60
_MAX_LINE_LENGTH = 500
_MAX_FIRST_LINE_LENGTH = 200


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, for a sentence; empty where it says nothing."""
    line = printable(next(iter(message_of(error).strip().splitlines()), ""))
    return line if len(line) <= _MAX_FIRST_LINE_LENGTH else f"{line[:_MAX_FIRST_LINE_LENGTH]}..."


def message_of(error: BaseException) -> str:
    """What an exception says; empty where saying it fails, which is the user's code too."""
    try:
        return str(error)
    except Exception:
        return ""


def printable(text: str) -> str:
    """A text without what a terminal would take for a command."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def shortened(text: str) -> str:
    """A text to show: of many lines without its middle, long lines without their ends."""
    lines = [
        line if len(line) <= _MAX_LINE_LENGTH else f"{line[:_MAX_LINE_LENGTH]}..."
        for line in printable(text).splitlines()
    ]
    if len(lines) > _MAX_LINES:
        half = _MAX_LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half:,} more lines ...", *lines[-half:]]
    return "\n".join(lines)


def user_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of libraries and of memprof.

    Where JAX fails long after it has traced the user's code, it hangs the frames from back then on the error as its
    cause: they are shown as if the error came from there. Where no frame is the user's, the error stands alone.
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
    """The innermost line of the user's own code that an exception comes from, as `train.py:12`; empty without one."""
    frames = _user_frames(traceback.TracebackException.from_exception(error, compact=True))
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def is_of_user_code(error: BaseException) -> bool:
    """Whether an exception comes from a line of the user's own code, and not only from what that code has asked for."""
    return any(_is_users(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def _user_frames(shown: traceback.TracebackException) -> list[traceback.FrameSummary]:
    return [frame for frame in shown.stack if _is_users(frame.filename)]


def _is_users(filename: str) -> bool:
    if _MODELS.search(filename):
        return True
    return not (filename.startswith(("<", _OURS, *_STANDARD_LIBRARY)) or _PACKAGES.search(filename))
