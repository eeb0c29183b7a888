"""Lays out a whole document, block by block."""

from __future__ import annotations

from memprof.reports.document import Block, Document, Facts, Gauge, Heading, Note, StackedBars, StackedChart, Table
from memprof.reports.layout.bars import bar_lines
from memprof.reports.layout.chart import chart_lines
from memprof.reports.layout.gauge import gauge_lines
from memprof.reports.layout.lines import Line, Paper, trim
from memprof.reports.layout.prose import fact_lines, heading_lines, note_lines
from memprof.reports.layout.table import table_lines


def page_lines(document: Document, paper: Paper) -> list[Line]:
    """Every line of the document; no line ends in blanks."""
    lines: list[Line] = []
    previous: Block | None = None
    for block in document.blocks:
        if isinstance(block, Facts) and isinstance(previous, Facts | Table):
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
        case Gauge():
            return gauge_lines(block, paper)
        case StackedBars():
            return bar_lines(block, paper)
        case Table():
            return table_lines(block, paper)
        case StackedChart():
            return chart_lines(block, paper)
