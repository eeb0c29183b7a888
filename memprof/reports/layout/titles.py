"""The titles of columns, which may be names of the user's own and longer than the numbers under them."""

from __future__ import annotations

import re

from memprof.reports.layout.lines import Paper
from memprof.reports.text import cell_width

_WORD = re.compile(r"[^\s+-]*[+-]|[^\s+-]+\s?|\s")  # a title breaks after a plus, a hyphen or a blank
_LONGEST_WORD = 16


def narrowest_title(title: str, paper: Paper) -> int:
    """The width that a title needs when it breaks wherever it may."""
    widths = (cell_width(word.rstrip()) for word in _words(title, paper, _LONGEST_WORD))
    return max(widths, default=0)


def break_title(title: str, width: int, paper: Paper) -> list[str]:
    """The title as few lines of at most `width` cells; an empty one is one empty line."""
    lines = [""]
    for word in _words(title, paper, width):
        if lines[-1] and cell_width(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _words(title: str, paper: Paper, width: int) -> list[str]:
    """The words with the blank behind them; what is longer than a line is shortened in the middle."""
    words = _WORD.findall(paper.clean(title))
    return [word if cell_width(word.rstrip()) <= width else paper.shorten(word, width) for word in words]
