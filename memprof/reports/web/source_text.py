"""The text around a source line, as far as the capture holds it. No file is opened for it: a capture may name any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memprof.analysis.capture import SourceLines

_LINES_AROUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """Some lines of a file, the first of them being number `first_line`."""

    first_line: int
    lines: tuple[str, ...]


def source_texts(sources: Iterable[str], lines: SourceLines) -> dict[str, SourceText]:
    """The text around each `file.py:12` whose line the capture holds."""
    found = {source: _source_text(source, lines) for source in sorted(set(sources))}
    return {source: text for source, text in found.items() if text is not None}


def _source_text(source: str, lines: SourceLines) -> SourceText | None:
    file, _, number = source.rpartition(":")
    of_file = lines.get(file)
    if of_file is None or not number.isdecimal() or int(number) not in of_file:
        return None
    first = last = int(number)
    while first - 1 in of_file and first > int(number) - _LINES_AROUND:
        first -= 1
    while last + 1 in of_file and last < int(number) + _LINES_AROUND:
        last += 1
    return SourceText(first_line=first, lines=tuple(of_file[line] for line in range(first, last + 1)))
