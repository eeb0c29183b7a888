"""What the ending of a file says: `-o r.html` is a report as HTML, `-o r.memprof` a capture.

Light: which formats there are is only looked up for a file that is no capture.
"""

from __future__ import annotations

import os
from pathlib import Path

from memprof.errors import MemprofError

CAPTURE_SUFFIX = ".memprof"
JSON, TERMINAL = "json", "terminal"


def is_capture(text: str) -> bool:
    """Whether a file is a saved capture, by its name."""
    return text.endswith(CAPTURE_SUFFIX)


def is_report(path: Path | None) -> bool:
    """Whether a file is one that a report goes to, by its name."""
    return path is not None and _format_of(path) is not None


def format_for(name: str | None, path: Path | None) -> str:
    """The format that a report is written in.

    Args:
        name: what the user says; None: the ending of the file decides.
        path: the file; None: stdout.

    Raises:
        MemprofError: the two say different things, or nobody knows what the ending means.
    """
    if path is None:
        return name or TERMINAL
    ending = _format_of(path)
    if is_capture(path.name):
        raise MemprofError(
            f"{path} is the name of a capture, but a report would be written: use the ending {_endings()}"
        )
    if name is None and ending is None and path.suffix:
        raise MemprofError(
            f"{path} ends in {path.suffix}, which is not a format: use the ending {_endings()}, or give --format"
        )
    if name is not None and ending is not None and ending != name:
        raise MemprofError(f"{path} names a report as {ending}, but --format says {name}: change one of them")
    return name or ending or TERMINAL


def capture_or_report(path: Path | None, *, otherwise: str) -> tuple[Path | None, Path | None]:
    """A file given with `-o` to a command that makes captures, as (for captures, for the report), one of them None.

    Raises:
        MemprofError: it is the name of neither; `otherwise` says what the name of one would be.
    """
    if path is None or is_capture(path.name) or os.path.isdir(path):  # that it is a folder is said where it is written
        return path, None
    if not is_report(path):
        raise MemprofError(f"{path} says neither that it is a capture nor a report: {otherwise}, or in {_endings()}")
    return None, path


def _format_of(path: Path) -> str | None:
    from memprof.reports.format import formats

    if is_capture(path.name):
        return None
    # `.speedscope.json` is not `.json`.
    by_length = sorted(formats(), key=lambda each: -len(each.suffix))
    return next((each.name for each in by_length if path.name.lower().endswith(each.suffix)), None)


def _endings() -> str:
    from memprof.reports.format import formats

    suffixes = [each.suffix for each in formats()]
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
