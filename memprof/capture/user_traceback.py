"""The traceback of an exception, cut to the frames of the user's own code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

_LIBRARY_FOLDERS = tuple(
    str(Path(sysconfig.get_paths()[name])) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = str(Path(__file__).resolve().parents[1])
# Modules of memprof that hold models, whose lines are as good as the user's own.
_MODELS = re.compile(r"[/\\]memprof[/\\]workloads[/\\](?:models|networks)[/\\]")


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
        return "".join(shown.format_exception_only())
    shown.stack = traceback.StackSummary.from_list(frames)
    shown.__cause__ = shown.__context__ = None
    return "".join(shown.format())


def _user_frames(shown: traceback.TracebackException) -> list[traceback.FrameSummary]:
    return [frame for frame in shown.stack if _is_users(frame.filename)]


def _is_users(filename: str) -> bool:
    if _MODELS.search(filename):
        return True
    return not filename.startswith(("<", _OURS, *_LIBRARY_FOLDERS))
