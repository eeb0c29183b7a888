"""The text of the user's source lines, read on the machine of the compile and stored in the capture.

A report shows a few lines around each line that makes a buffer. This module reads them once, on the machine that has
the files. So a reader on another machine sees them too, and viewing a capture never opens a file that the capture
names.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from memprof.analysis.attribution.sources import Sources
from memprof.analysis.hlo.program import Program
from memprof.analysis.records.capture import CodeFolders, SourceLines
from memprof.untrusted import clean

LINES_AROUND = 2
_MAX_LINES = 20_000
_MAX_CHARACTERS = 400


def source_lines_of(program: Program, folders: CodeFolders, search_path: Sequence[str]) -> SourceLines:
    """Return the source lines of a program's operations and of the user's calls, with the lines around them."""
    sources = Sources(program, folders)
    different = {(each.stack_frame_id, each.source_file, each.source_line): each for each in program.instructions}
    places = list(map(sources.lines, different.values()))
    lines = {line for place in places for line in (place.user, place.library)}
    calls = {frame for place in places for frame in place.stack if frame.is_own}
    return read_source_lines(lines | {f"{frame.file}:{frame.line}" for frame in calls}, search_path, folders.cells)


def read_source_lines(
    sources: Iterable[str], search_path: Sequence[str], cells: Mapping[str, str] = MappingProxyType({})
) -> SourceLines:
    """Read the text around each `file.py:12` that names a Python file of this machine, each line once.

    Args:
        search_path: the folders of installed packages.
        cells: the names of a notebook's cells, by their file names.
    """
    file_of_cell = {name: file for file, name in cells.items()}
    found: dict[str, dict[int, str]] = {}
    for source in sorted(set(sources)):
        file, _, number = source.rpartition(":")
        if not number.isdecimal():
            continue
        texts = _texts(file_of_cell.get(file, file), search_path)
        lines = found.setdefault(file, {})
        for line in range(max(1, int(number) - LINES_AROUND), min(len(texts), int(number) + LINES_AROUND) + 1):
            lines[line] = clean(texts[line - 1].expandtabs(4).rstrip()[:_MAX_CHARACTERS])
        if sum(map(len, found.values())) > _MAX_LINES:
            break
    return {file: dict(sorted(lines.items())) for file, lines in found.items() if lines}


def _texts(file: str, search_path: Sequence[str]) -> list[str]:
    """Return all lines of a file, found by its full path, its path in an installed package, or as a notebook cell."""
    if Path(file).suffix != ".py":
        return []
    paths = [Path(file)] if Path(file).is_absolute() else [Path(folder) / file for folder in search_path]
    try:
        return next((lines for path in paths if (lines := linecache.getlines(str(path)))), [])
    except (OSError, ValueError):  # a name that no file can have
        return []
