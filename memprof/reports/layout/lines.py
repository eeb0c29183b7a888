"""Lines of spans: text in its final place, with its meaning but without its look."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memprof.analysis.records.categories import Category
from memprof.reports.document import Align, Shorten, Tone
from memprof.reports.palette import ASCII, UNICODE, Glyphs
from memprof.reports.text import cell_width, printable, shorten_end, shorten_middle, wrap

Key = Category | Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a line.

    Attributes:
        key: the category or tone that determines the colour; None for the terminal's default colour.
        filled: whether the colour fills the background instead of the text.
        bold: whether the text is bold.
    """

    text: str
    key: Key | None = None
    filled: bool = False
    bold: bool = False


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """The output grid: its width in cells and its characters. Every text passes `clean` once before it is measured."""

    width: int
    unicode: bool

    @property
    def glyphs(self) -> Glyphs:
        return UNICODE if self.unicode else ASCII

    def clean(self, text: str) -> str:
        """Escape every character that this output cannot display."""
        return printable(text, ascii_only=not self.unicode)

    def shorten(self, text: str, width: int, how: Shorten = Shorten.MIDDLE) -> str:
        """Shorten a text to `width` cells, unless `how` forbids it."""
        if how is Shorten.NEVER:
            return text
        cut = shorten_end if how is Shorten.END else shorten_middle
        return cut(text, width, ellipsis=self.glyphs.ellipsis)

    def wrap(self, text: str, width: int) -> list[str]:
        """Break prose into lines of at most `width` cells."""
        return wrap(self.clean(text), width, ellipsis=self.glyphs.ellipsis)


def pad(text: str, width: int, align: Align) -> str:
    """Pad a text with blanks to `width` cells."""
    space = " " * (width - cell_width(text))
    return space + text if align is Align.RIGHT else text + space


def trim(line: Line) -> Line:
    """Remove the blanks at the end of a line, which would be noise in a pipe or a diff."""
    kept = list(line)
    while kept and not kept[-1].filled and not kept[-1].text.rstrip(" "):
        kept.pop()
    if kept and not kept[-1].filled:
        kept[-1] = replace(kept[-1], text=kept[-1].text.rstrip(" "))
    return tuple(kept)


def merge(spans: list[Span]) -> Line:
    """Merge neighbouring spans that look the same."""
    merged: list[Span] = []
    for span in spans:
        if merged and replace(merged[-1], text="") == replace(span, text=""):
            merged[-1] = replace(span, text=merged[-1].text + span.text)
        else:
            merged.append(span)
    return tuple(merged)
