"""The text around a source line, where the file is on this machine."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LINES_AROUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """Some lines of a file, the first of them being number `first_line`."""

    first_line: int
    lines: tuple[str, ...]


def source_texts(sources: Iterable[str]) -> dict[str, SourceText]:
    """The text around each `file.py:12` that can be found.

    Only Python files are read: where a capture comes from somebody else, it must not be able to name any file of this
    machine and have it put into a report.
    """
    found = {source: _source_text(source) for source in set(sources) if source}
    return {source: text for source, text in sorted(found.items()) if text is not None}


def _source_text(source: str) -> SourceText | None:
    file, _, number = source.rpartition(":")
    path = _find(file)
    if path is None or not number.isdecimal():
        return None
    first = max(1, int(number) - _LINES_AROUND)
    lines = linecache.getlines(str(path))[first - 1 : int(number) + _LINES_AROUND]
    return SourceText(first_line=first, lines=tuple(line.rstrip() for line in lines)) if lines else None


def _find(file: str) -> Path | None:
    """The file by its full path, or by its path in an installed package."""
    path = Path(file)
    if path.suffix != ".py":
        return None
    candidates = [path] if path.is_absolute() else [Path(folder) / path for folder in sys.path]
    try:
        return next((candidate for candidate in candidates if candidate.is_file()), None)
    except (OSError, ValueError):  # a name that no file can have
        return None
