"""Lay out a whole document, block by block. Headings, facts and notes are simple enough to be laid out here."""

from __future__ import annotations

import re

from memprof.reports.document import (
    Block,
    Code,
    Document,
    Facts,
    Gauge,
    Heading,
    Note,
    StackedBars,
    StackedChart,
    Table,
    Tone,
)
from memprof.reports.layout.lines import Line, Paper, Span, trim
from memprof.reports.layout.pictures import bar_lines, chart_lines, gauge_lines
from memprof.reports.layout.table import table_lines
from memprof.reports.text import cell_width

_SHELL_WORD = re.compile(r"(?:'[^']*'|[^\s'])+")
_LABEL_GAP = 2
_LONGEST_VALUE = 3  # lines; a longer value is a list of names, not a sentence


def page_lines(document: Document, paper: Paper) -> list[Line]:
    """Return all lines of a document; no line ends in blanks."""
    lines: list[Line] = []
    previous: Block | None = None
    for block in document.blocks:
        if isinstance(block, Facts) and isinstance(previous, Facts | Table) and not block.facts[0].are_commands:
            lines.append(())
        lines += [trim(line) for line in _block_lines(block, paper)]
        previous = block
    return lines


def _block_lines(block: Block, paper: Paper) -> list[Line]:
    match block:
        case Heading():
            return heading_lines(block, paper)
        case Facts():
            return fact_lines(block, paper)
        case Note():
            return note_lines(block, paper)
        case Code():
            return [(), *((Span(text=paper.clean(line)),) for line in block.text.splitlines()), ()]
        case Gauge():
            return gauge_lines(block, paper)
        case StackedBars():
            return bar_lines(block, paper)
        case Table():
            return table_lines(block, paper)
        case StackedChart():
            return chart_lines(block, paper)


def heading_lines(heading: Heading, paper: Paper) -> list[Line]:
    """Lay out a title with its aside, or a section title within a rule."""
    glyphs = paper.glyphs
    aside = f" {paper.clean(heading.aside)} " if heading.aside else ""
    if heading.level == 1:
        text = paper.shorten(paper.clean(heading.text), paper.width - cell_width(aside) - 1)
        return [(Span(text=text, bold=True), Span(text=f" {aside}".rstrip(), key=Tone.MUTED))]
    # The rule before the title, a blank on each side of the title, and at least one character of rule after it.
    text = paper.shorten(paper.clean(heading.text), paper.width - 5)
    left = glyphs.rule * 2
    used = cell_width(text) + len(left) + 2
    if used + cell_width(aside) + 2 > paper.width:
        aside = ""
    aside = f"{left}{aside}" if aside else ""
    rest = glyphs.rule * max(0, paper.width - used - cell_width(aside))
    return [
        (),
        (
            Span(text=f"{left} ", key=Tone.MUTED),
            Span(text=text, key=Tone.ACCENT, bold=True),
            Span(text=f" {aside}{rest}", key=Tone.MUTED),
        ),
    ]


def fact_lines(facts: Facts, paper: Paper) -> list[Line]:
    """Lay out labels in one column and values beside them. Lines break between values, or within a value too long."""
    label_width = max(cell_width(paper.clean(fact.label)) for fact in facts.facts) + _LABEL_GAP
    lines: list[Line] = []
    for fact in facts.facts:
        label = paper.clean(fact.label)
        texts = _commands if fact.are_commands else _joined
        for text in texts(fact.values, paper, paper.width - label_width):
            left = Span(text=label + " " * (label_width - cell_width(label)), key=Tone.MUTED)
            lines.append((left, Span(text=text)))
            label = ""
    return lines


def note_lines(note: Note, paper: Paper) -> list[Line]:
    """Lay out a note: a bullet that shows the tone without colour, and the wrapped text, uncoloured for good news."""
    bullet = paper.glyphs.bullets[note.tone]
    tone = None if note.tone is Tone.GOOD else note.tone
    lines: list[Line] = []
    for text in paper.wrap(note.text, paper.width - len(bullet)):
        lines.append((Span(text=bullet, key=note.tone), Span(text=text, key=tone)))
        bullet = " " * len(bullet)
    return lines


def _commands(values: tuple[str, ...], paper: Paper, width: int) -> list[str]:
    lines: list[str] = []
    for value in values:
        line = ""
        for word in _SHELL_WORD.findall(paper.clean(value)):
            if line and cell_width(f"{line} {word} \\") > width:
                lines.append(f"{line} \\")
                line = f"  {word}"
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return lines


def _joined(values: tuple[str, ...], paper: Paper, width: int) -> list[str]:
    separator = paper.glyphs.separator
    lines: list[str] = []
    for value in values:
        sentence = paper.wrap(value, width)
        if 1 < len(sentence) <= _LONGEST_VALUE:
            lines += sentence
            continue
        text = paper.shorten(paper.clean(value), width)
        if lines and cell_width(lines[-1]) + len(separator) + cell_width(text) <= width:
            lines[-1] += separator + text
        else:
            lines.append(text)
    return lines
