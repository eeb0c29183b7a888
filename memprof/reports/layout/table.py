"""Lay out tables: titles, rows with their tree, and the total under a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memprof.analysis.records.categories import Category
from memprof.reports.document import Align, Bar, Cell, Column, Row, Shorten, Table, Tone
from memprof.reports.layout.columns import Fit, Need, break_lines, continue_columns, fit_columns
from memprof.reports.layout.lines import Line, Paper, Span, merge, pad, trim
from memprof.reports.layout.pictures import letter
from memprof.reports.text import cell_width

_LONGEST_BAR = 28
_WORD = re.compile(r"[^\s+-]*[+-]|[^\s+-]+\s?|\s")  # a title breaks after a plus, a hyphen or a blank
_LONGEST_WORD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _FlatRow:
    """A row of the flattened tree, with the prefixes that draw the tree: of the row, and of the lines below it."""

    cells: tuple[Cell | Bar, ...]
    prefix: str
    prefix_below: str
    bold: bool = False


def table_lines(table: Table, paper: Paper) -> list[Line]:
    """Lay out a table without its empty columns. A line under it names the columns that did not fit."""
    rows = list(_flatten(table.rows, paper, prefix="", nested=False))
    total = [_FlatRow(cells=table.total.cells, prefix="", prefix_below="", bold=True)] if table.total else []
    needs = [
        _need(index, column, [*rows, *total], paper)
        for index, column in enumerate(table.columns)
        if any(_has_text(row.cells[index]) for row in [*rows, *total])
    ]
    if not needs:
        return []
    fits = continue_columns(needs, paper.width) if table.continued else [fit_columns(needs, paper.width)]
    if fits[-1].is_too_wide(paper.width):  # two tables read better than one whose lines the terminal wraps
        kept = [need for need in needs if need.index in fits[-1].widths]
        fits = [replace(each, dropped=fits[-1].dropped) for each in continue_columns(kept, paper.width)]
    lines: list[Line] = []
    for fit in fits:
        lines += [*([()] if lines else []), *_grid_lines(table, rows, total, fit, paper)]
    hidden = [table.columns[index].title for index in fits[-1].dropped if table.columns[index].title]
    if hidden and not table.is_extract:
        text = f"not shown at this width: {', '.join(hidden)}"
        lines += [(Span(text=line, key=Tone.MUTED),) for line in paper.wrap(text, paper.width)]
    return lines


def _grid_lines(table: Table, rows: list[_FlatRow], total: list[_FlatRow], fit: Fit, paper: Paper) -> list[Line]:
    """Lay out the titles, the rows, and the total under a rule."""
    columns = table.columns
    longest = [table.longest_bar(index) for index in range(len(columns))]
    lines = _title_lines(columns, fit, paper)
    for row in rows:
        lines.append(_row_line(row, columns, fit, longest, paper))
        lines += _below_lines(row, columns, fit, paper)
    table_width = sum(fit.widths.values()) + fit.gap * (len(fit.widths) - 1)
    if total:
        lines.append((Span(text=paper.glyphs.rule * min(table_width, paper.width), key=Tone.MUTED),))
    return lines + [_row_line(row, columns, fit, longest, paper) for row in total]


def _flatten(rows: tuple[Row, ...], paper: Paper, *, prefix: str, nested: bool) -> Iterator[_FlatRow]:
    glyphs = paper.glyphs
    for number, row in enumerate(rows, start=1):
        is_last = number == len(rows)
        branch = (glyphs.tree_last if is_last else glyphs.tree_branch) if nested else ""
        pipe = (" " * len(glyphs.tree_pipe) if is_last else glyphs.tree_pipe) if nested else ""
        yield _FlatRow(cells=row.cells, prefix=prefix + branch, prefix_below=prefix + pipe)
        yield from _flatten(row.children, paper, prefix=prefix + pipe, nested=True)


def _has_text(cell: Cell | Bar) -> bool:
    return isinstance(cell, Bar) or bool(cell.text)


def _need(index: int, column: Column, rows: list[_FlatRow], paper: Paper) -> Need:
    if any(isinstance(row.cells[index], Bar) for row in rows):
        return Need(index=index, column=column, natural=_LONGEST_BAR, minimum=column.min_width)
    widths = (_cell_width(row.cells[index], paper) + (len(row.prefix) if index == 0 else 0) for row in rows)
    natural = max(narrowest_title(column.title, paper), *widths)
    minimum = natural if column.shorten is Shorten.NEVER else min(natural, column.min_width)
    return Need(index=index, column=column, natural=natural, minimum=minimum)


def _cell_width(cell: Cell | Bar, paper: Paper) -> int:
    if isinstance(cell, Bar):
        return 0
    return cell_width(paper.clean(cell.text)) + sum(cell_width(span.text) for span in _sign(cell, paper))


def _sign(cell: Cell, paper: Paper) -> list[Span]:
    """Return the prefix of a text: the letter of its category, or the sign of its tone."""
    if isinstance(cell.key, Category):
        return [letter(cell.key), Span(text=" ")]
    if cell.key and cell.is_verdict:
        return [Span(text=paper.glyphs.bullets[cell.key], key=cell.key)]
    return []


def _title_lines(columns: tuple[Column, ...], fit: Fit, paper: Paper) -> list[Line]:
    """Lay out the titles, aligned to the line above the first row; titles that break begin further up."""
    titles = {index: break_title(columns[index].title, width, paper) for index, width in fit.widths.items()}
    height = max(map(len, titles.values()))
    lines: list[Line] = []
    for row in range(height):
        texts = []
        for index, title in titles.items():
            text = [*[""] * (height - len(title)), *title][row]
            texts.append(pad(text, fit.widths[index], columns[index].align))
        lines.append(trim((Span(text=(" " * fit.gap).join(texts), key=Tone.MUTED),)))
    return lines


def _row_line(row: _FlatRow, columns: tuple[Column, ...], fit: Fit, longest: list[int], paper: Paper) -> Line:
    spans: list[Span] = []
    for index, width in fit.widths.items():
        if spans:
            spans.append(Span(text=" " * fit.gap))
        cell = row.cells[index]
        if isinstance(cell, Bar):
            spans += _bar(cell, longest[index], width, paper)
        else:
            prefix = row.prefix if index == 0 else ""
            spans += _text_cell(cell, columns[index], width, prefix=prefix, bold=row.bold, paper=paper)
    return trim(merge(spans))


def _text_cell(cell: Cell, column: Column, width: int, *, prefix: str, bold: bool, paper: Paper) -> list[Span]:
    spans = [Span(text=prefix, key=Tone.MUTED)] if prefix else []
    tone = cell.key if isinstance(cell.key, Tone) else None
    sign = _sign(cell, paper)
    width -= len(prefix) + sum(cell_width(span.text) for span in sign)
    text = paper.shorten(paper.clean(cell.text), width, column.shorten)
    content = [*sign, Span(text=text, key=tone, bold=bold)]
    space = Span(text=" " * (width - cell_width(text)))
    return [*spans, space, *content] if column.align is Align.RIGHT else [*spans, *content, space]


def _bar(bar: Bar, longest: int, width: int, paper: Paper) -> list[Span]:
    steps = paper.glyphs.bar_steps
    # A nonzero value gets at least one step.
    length = max(1, round(bar.value * width * len(steps) / longest)) if bar.value else 0
    full, rest = divmod(length, len(steps))
    text = steps[-1] * full + (steps[rest - 1] if rest else "")
    return [Span(text=text, key=bar.category or Tone.ACCENT), Span(text=" " * (width - len(text)))]


def _below_lines(row: _FlatRow, columns: tuple[Column, ...], fit: Fit, paper: Paper) -> list[Line]:
    """Lay out the nonempty cells below a row, on as few lines as their minimum widths allow."""
    indent = Span(text=f"{row.prefix_below}  ", key=Tone.MUTED)
    separator = Span(text=paper.glyphs.separator, key=Tone.MUTED)
    cells = {index: cell for index in fit.below if isinstance(cell := row.cells[index], Cell) and cell.text}
    needs = [_need(index, columns[index], [row], paper) for index in cells]
    lines: list[Line] = []
    for group in break_lines(needs, paper.width - len(indent.text), gap=len(separator.text)):
        spans = [indent]
        for index, width in group.items():
            text = paper.shorten(paper.clean(cells[index].text), width, columns[index].shorten)
            spans += [Span(text=text, key=Tone.MUTED), separator]
        lines.append(merge(spans[:-1]))
    return lines


def narrowest_title(title: str, paper: Paper) -> int:
    """Return the width in cells of a title that breaks wherever it may."""
    widths = (cell_width(word.rstrip()) for word in _words(title, paper, _LONGEST_WORD))
    return max(widths, default=0)


def break_title(title: str, width: int, paper: Paper) -> list[str]:
    """Break a title into as few lines of at most `width` cells as possible; an empty title is one empty line."""
    lines = [""]
    for word in _words(title, paper, width):
        if lines[-1] and cell_width(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _words(title: str, paper: Paper, width: int) -> list[str]:
    """Split a title into words, each with its trailing blank. Words longer than a line are shortened in the middle."""
    words = _WORD.findall(paper.clean(title))
    return [word if cell_width(word.rstrip()) <= width else paper.shorten(word, width) for word in words]
