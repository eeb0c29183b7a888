r"""Measure, escape, shorten and wrap text in a grid of terminal cells.

Names come from the user's program and may contain any character. Characters that would move the cursor, hide text or
change its direction (control characters, bidirectional overrides, lone surrogates) are replaced by escapes such as
`\x1b`.
"""

from __future__ import annotations

import unicodedata

_ZERO_WIDTH_JOINER = "\u200d"  # harmless, and part of many emoji


def printable(text: str, *, ascii_only: bool) -> str:
    """Escape every character that a terminal (or an ASCII stream) would not display."""
    if text.isprintable() and (text.isascii() or not ascii_only):
        return text
    return "".join(_printable_char(char, ascii_only=ascii_only) for char in text)


def cell_width(text: str) -> int:
    """Return the width of a text in terminal cells. Joined emoji count one by one, so the width is never too small."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def shorten_middle(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Remove the middle of a text so that it takes at most `width` cells; both ends stay readable."""
    if cell_width(text) <= width:
        return text
    keep = width - cell_width(ellipsis)
    if keep < 1:
        return _head(text, width)
    # The end of a path or op name is more specific than its beginning, so it gets the odd cell.
    head = _head(text, keep // 2)
    tail = _head(text[::-1], keep - keep // 2)[::-1]
    return head + ellipsis + tail


def shorten_end(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Remove the end of a text so that it takes at most `width` cells; meant for prose."""
    if cell_width(text) <= width:
        return text
    keep = width - cell_width(ellipsis)
    return _head(text, width) if keep < 1 else _head(text, keep).rstrip() + ellipsis


def wrap(text: str, width: int, *, ellipsis: str = "…") -> list[str]:
    """Break prose into lines of at most `width` cells, but not between a number and its unit.

    A word that is longer than a line is shortened in the middle.
    """
    lines: list[str] = []
    line = ""
    for word in _unbreakable_words(text):
        word = shorten_middle(word, width, ellipsis=ellipsis)
        joined = f"{line} {word}" if line else word
        if line and cell_width(joined) > width:
            lines.append(line)
            line = word
        else:
            line = joined
    return [*lines, line] if line else lines


def _unbreakable_words(text: str) -> list[str]:
    words: list[str] = []
    for word in text.split():
        if words and words[-1][-1].isdigit() and words[-1].lstrip("(")[0].isdigit():
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def _printable_char(char: str, *, ascii_only: bool) -> str:
    if ascii_only and not char.isascii():
        return char.encode("ascii", "backslashreplace").decode("ascii")
    if char.isprintable() or char == _ZERO_WIDTH_JOINER:
        return char
    return char.encode("unicode_escape").decode("ascii")


def _char_width(char: str) -> int:
    if char == _ZERO_WIDTH_JOINER or unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _head(text: str, width: int) -> str:
    """Return the longest prefix of a text that takes at most `width` cells."""
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text
