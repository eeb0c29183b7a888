"""Headings, facts and notes."""

from __future__ import annotations

from memprof.reports.document import Facts, Heading, Note, Tone
from memprof.reports.layout.lines import Line, Paper, Span
from memprof.reports.text import cell_width

_LABEL_GAP = 2
_LONGEST_VALUE = 3  # lines: what is longer is no sentence, but a name that nobody reads to its end


def heading_lines(heading: Heading, paper: Paper) -> list[Line]:
    """A title with its aside, or a rule with a title set into it."""
    glyphs = paper.glyphs
    aside = f" {paper.clean(heading.aside)} " if heading.aside else ""
    if heading.level == 1:
        text = paper.shorten(paper.clean(heading.text), paper.width - cell_width(aside) - 1)
        return [(Span(text=text, bold=True), Span(text=f" {aside}".rstrip(), key=Tone.MUTED))]
    # The rule before the title, a blank on each side of it, and at least one piece of rule after it.
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
    """Labels in one column, values beside them; a line breaks between two values, or within one that is too long."""
    label_width = max(cell_width(paper.clean(fact.label)) for fact in facts.facts) + _LABEL_GAP
    lines: list[Line] = []
    for fact in facts.facts:
        label = paper.clean(fact.label)
        for text in _joined(fact.values, paper, paper.width - label_width):
            left = Span(text=label + " " * (label_width - cell_width(label)), key=Tone.MUTED)
            lines.append((left, Span(text=text)))
            label = ""
    return lines


def note_lines(note: Note, paper: Paper) -> list[Line]:
    """A bullet that tells the tone without colour, and the text wrapped beside it; good news is said plainly."""
    bullet = paper.glyphs.bullets[note.tone]
    tone = None if note.tone is Tone.GOOD else note.tone
    lines: list[Line] = []
    for text in paper.wrap(note.text, paper.width - len(bullet)):
        lines.append((Span(text=bullet, key=note.tone), Span(text=text, key=tone)))
        bullet = " " * len(bullet)
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
