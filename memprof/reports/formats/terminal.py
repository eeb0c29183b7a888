"""The terminal: a document as lines of text, in colour if the terminal supports it.

`layout/` places all content (its docstring says why rich does not); rich colours it. The text is returned, never
printed, and does not depend on the environment: the command line passes the properties of its stream. Text without
colour loses no information, because letters, bars and words carry it too.
"""

from __future__ import annotations

from rich.color import ColorSystem as RichColorSystem
from rich.style import Style

from memprof.analysis.records.categories import Category
from memprof.reports.document import Document
from memprof.reports.format import document_format
from memprof.reports.layout.lines import Line, Paper, Span
from memprof.reports.layout.page import page_lines
from memprof.reports.options import ColorSystem, RenderOptions
from memprof.reports.palette import CATEGORY_COLORS, INK, TONE_COLORS

_NARROWEST = 40
_RICH: dict[ColorSystem, RichColorSystem] = {
    "standard": RichColorSystem.STANDARD,
    "256": RichColorSystem.EIGHT_BIT,
    "truecolor": RichColorSystem.TRUECOLOR,
}


def lower(document: Document, options: RenderOptions) -> str:
    """Lower a document to text for a terminal with the width, colours and characters of the options."""
    paper = Paper(width=max(options.width, _NARROWEST), unicode=options.unicode)
    return "".join(f"{_text(line, options.color)}\n" for line in page_lines(document, paper))


def _text(line: Line, color: ColorSystem | None) -> str:
    if color is None:
        return "".join(span.text for span in line)
    return "".join(_style(span).render(span.text, color_system=_RICH[color]) for span in line)


def _style(span: Span) -> Style:
    # Create a new style each time: a rich style (15.0) caches the codes of the first colour system that it renders.
    if span.key is None:
        return Style(bold=span.bold)
    color = CATEGORY_COLORS[span.key] if isinstance(span.key, Category) else TONE_COLORS[span.key]
    return Style(color=INK if span.filled else color, bgcolor=color if span.filled else None, bold=span.bold)


FORMAT = document_format(
    name="terminal",
    suffix=".txt",
    summary="text with bars, a tree and a timeline, for reading in a terminal or a log",
    lower=lower,
)
