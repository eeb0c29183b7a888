"""Markdown, for a comment on a pull request: GitHub tables, pictures as blocks of letters, no HTML.

Bars and charts are laid out as on a terminal, with letters instead of colours. Bars within a table are omitted, because
the number beside them says the same. Texts of the user's program must not become markup, links or notifications.
GitHub links mentions, issue numbers and addresses after it has rendered the Markdown, so a backslash cannot escape
them; inline code can, because GitHub leaves it alone. See the GitHub Flavored Markdown specification, section 6.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memprof.analysis.records.categories import Category
from memprof.reports.document import (
    Align,
    Bar,
    Block,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Gauge,
    Heading,
    Note,
    Row,
    StackedBars,
    StackedChart,
    Table,
    Tone,
)
from memprof.reports.format import document_format
from memprof.reports.layout.lines import Paper
from memprof.reports.layout.page import page_lines
from memprof.reports.options import RenderOptions
from memprof.reports.palette import CATEGORY_LETTERS

_PICTURE_WIDTH = 80
_LONGEST_TEXT = 64  # characters of a cell that may be shortened
_QUIET = frozenset({Tone.MUTED, Tone.ACCENT})
_LINKING = r"(?P<linking>@(?=\w)|#(?=\d)|:(?=//)|(?<=www)\.)"
_MARKUP = r"(?P<markup>[\\`*\[\]<>|~$&#]|(?<![^\W_])_|_(?![^\W_]))"  # an underscore within a word is literal
_SPECIAL = re.compile(f"{_LINKING}|{_MARKUP}")
_BACKTICKS = re.compile(r"`+")


def lower(document: Document, options: RenderOptions) -> str:
    """Lower a document to GitHub's Markdown. The width and colours of the terminal are ignored."""
    paper = Paper(width=_PICTURE_WIDTH, unicode=options.unicode)
    parts: list[str] = []
    previous: Block | None = None
    for block in document.blocks:
        if parts:
            parts.append("\n" if isinstance(block, Note) and isinstance(previous, Note) else "\n\n")
        parts.append(_block(block, paper))
        previous = block
    return "".join(parts) + "\n"


def _block(block: Block, paper: Paper) -> str:
    match block:
        case Heading():
            aside = f" *{_text(block.aside, paper)}*" if block.aside else ""
            return f"{'#' * (block.level + 1)} {_text(block.text, paper)}{aside}"
        case Facts():
            return _facts(block, paper)
        case Note():
            return f"- {_sign(block.tone, paper)}{_text(block.text, paper)}"
        case Code():
            return fenced(block.text.splitlines(), language="python")
        case Table():
            return "\n".join(_table(block, paper))
        case Gauge() | StackedBars() | StackedChart():
            lines = page_lines(Document(blocks=(block,)), paper)
            return fenced(["".join(span.text for span in line) for line in lines])


def _facts(facts: Facts, paper: Paper) -> str:
    separator = " · " if paper.unicode else "; "
    texts = ((fact.label, separator.join(_text(value, paper) for value in fact.values)) for fact in facts.facts)
    return "\n".join(f"- **{_text(label, paper)}**: {values}" for label, values in texts)


def _table(table: Table, paper: Paper) -> Iterator[str]:
    rows = list(table.rows_with_depth())
    total = [(table.total, 0)] if table.total else []
    shown = [index for index in range(len(table.columns)) if _has_text(index, [row for row, _ in rows + total])]
    columns = [table.columns[index] for index in shown]
    yield _line(_text(column.title, paper) for column in columns)
    yield _line("---:" if column.align is Align.RIGHT else ":---" for column in columns)
    for row, depth in rows:
        yield _line(_cells(row, table.columns, shown, depth=depth, paper=paper))
    for row, depth in total:
        cells = _cells(row, table.columns, shown, depth=depth, paper=paper)
        yield _line(f"**{cell}**" if cell else "" for cell in cells)


def _has_text(index: int, rows: Sequence[Row]) -> bool:
    cells = [row.cells[index] for row in rows]
    return any(isinstance(cell, Cell) and cell.text for cell in cells) and not any(
        isinstance(cell, Bar) for cell in cells
    )


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row, columns: Sequence[Column], shown: Sequence[int], *, depth: int, paper: Paper) -> list[str]:
    texts = [_cell(cell, columns[index], paper) for index in shown if isinstance(cell := row.cells[index], Cell)]
    branch = ("↳ " if paper.unicode else "- ") * depth
    return [f"{branch}{texts[0]}", *texts[1:]]


def _cell(cell: Cell, column: Column, paper: Paper) -> str:
    how = column.shorten
    text = escape_markdown(paper.shorten(paper.clean(cell.text), _LONGEST_TEXT, how))
    if isinstance(cell.key, Category):
        return f"`{CATEGORY_LETTERS[cell.key]}` {text}"
    return f"{_sign(cell.key, paper)}{text}" if cell.key and cell.is_verdict else text


def _sign(tone: Tone, paper: Paper) -> str:
    """Return the sign of a tone, because Markdown has no colour. Muted items of a list need no sign."""
    return "" if tone in _QUIET else escape_markdown(paper.glyphs.bullets[tone])


def _text(text: str, paper: Paper) -> str:
    return escape_markdown(paper.clean(text))


def escape_markdown(text: str) -> str:
    r"""Escape a printable, single-line text so that GitHub shows it literally.

    >>> escape_markdown("a|b <script> __init__ @everyone")
    'a\\|b \\<script\\> \\_\\_init\\_\\_ `@`everyone'
    """
    return _SPECIAL.sub(lambda match: f"`{match[0]}`" if match["linking"] else f"\\{match[0]}", text)


def fenced(lines: list[str], *, language: str = "text") -> str:
    """Fence lines as a code block, with a fence that no line can end."""
    longest = max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


FORMAT = document_format(
    name="markdown",
    suffix=".md",
    summary="GitHub tables without HTML, for a comment on a pull request",
    lower=lower,
)
