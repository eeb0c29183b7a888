"""Lower a document to HTML that needs no scripts, for pages without JavaScript, for print and for notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from urllib.parse import urlencode

from memprof.analysis.records.categories import Category
from memprof.reports.document import (
    Align,
    Bar,
    Block,
    Cell,
    Code,
    Column,
    Document,
    Fact,
    Facts,
    Gauge,
    Heading,
    Moment,
    Note,
    Part,
    Row,
    Shorten,
    StackedBars,
    StackedChart,
    Table,
    categories_of,
)
from memprof.reports.palette import CATEGORY_LETTERS, NARROWEST_LETTER, UNICODE
from memprof.reports.units import format_bytes, format_share
from memprof.reports.web.page import Section, clean, escaped

_BREAKS = re.compile(r"(?<!<)[/+]")  # except the slash of a closing tag
_MAX_VALUES = 12  # values of a fact; more are folded
_WIDTH, _HEIGHT = 960, 240


def sections_of(document: Document) -> list[Section]:
    """Split a document into sections: one before the first heading of level 2, and one for each such heading."""
    return list(_sections(document.blocks))


def section_of(title: str, blocks: Sequence[Block]) -> Section:
    """Make a section with a title from blocks."""
    return Section(title=title, html="\n".join(map(block_html, blocks)))


def block_html(block: Block) -> str:
    """Lower one block to an HTML element."""
    match block:
        case Heading():
            aside = _aside(block.aside) if block.aside else ""
            return f"<h{block.level}>{escaped(block.text)}{aside}</h{block.level}>"
        case Facts():
            return _facts(block)
        case Note():
            return f'<p class="note tone-{block.tone.value}">{_bullet(block)}{escaped(block.text)}</p>'
        case Code():
            return f'<pre class="code">{escaped(block.text)}</pre>'
        case Gauge():
            return _gauge(block)
        case StackedBars():
            return _bars(block)
        case Table():
            return _table(block)
        case StackedChart():
            return (
                f'<figure class="chart" data-chart="timeline">{chart_svg(block)}'
                f"<figcaption>{escaped(block.mark)}</figcaption>"
                f"{_legend(categories_of(moment.parts for moment in block.moments))}</figure>"
            )


def _sections(blocks: Iterable[Block]) -> Iterator[Section]:
    number = 0

    def section(block: Block) -> int:
        nonlocal number
        number += isinstance(block, Heading) and block.level == 2
        return number

    for _, members in groupby(blocks, key=section):
        own = list(members)
        titles = (block.text for block in own if isinstance(block, Heading) and block.level == 2)
        yield section_of(next(titles, "Overview"), own)


def _facts(facts: Facts) -> str:
    return f'<dl class="facts">{"".join(map(_fact, facts.facts))}</dl>'


def _fact(fact: Fact) -> str:
    values = "".join(f"<span>{escaped(value)}</span> " for value in fact.values)
    if len(fact.values) > _MAX_VALUES:
        values = f"<details><summary>{len(fact.values)} values</summary>{values}</details>"
    return f"<dt>{escaped(fact.label)}</dt><dd>{values}</dd>"


def _gauge(gauge: Gauge) -> str:
    """Lower a gauge: the composition of the footprint above its share of the capacity, as on the terminal.

    Composition and share are separate bars: on one scale, a small step on a large card would be invisible.
    """
    verdict = (
        f'<p class="verdict tone-{gauge.tone.value}">{escaped(UNICODE.bullets[gauge.tone])}{escaped(gauge.verdict)}</p>'
    )
    if not gauge.total_bytes:
        return verdict
    sizes = {part.category: part.size_bytes for part in gauge.parts} if gauge.with_sizes else {}
    return (
        f'{verdict}<div class="gauge">{_stack(gauge.parts, gauge.total_bytes, None)}{_share(gauge)}</div>'
        f"{_legend(categories_of([gauge.parts]), sizes)}"
    )


def _share(gauge: Gauge) -> str:
    """Draw the footprint as a bar within the capacity or beyond it; empty if there is no capacity."""
    if not gauge.capacity_bytes:
        return ""
    tip = f"{format_share(gauge.total_bytes, gauge.capacity_bytes)} of {format_bytes(gauge.capacity_bytes)}"
    used = f"width:{gauge.total_bytes / gauge.scale_bytes:.3%};background:var(--{gauge.tone.value})"
    mark = _mark(gauge.capacity_bytes, gauge.scale_bytes) if gauge.total_bytes > gauge.capacity_bytes else ""
    return f'<div class="stack share" title="{escaped(tip)}"><span class="used" style="{used}"></span>{mark}</div>'


def _bars(bars: StackedBars) -> str:
    capacity, scale = bars.shown_capacity_bytes, bars.scale_bytes
    rows = (
        f'<div class="bar-label">{escaped(bar.label)}</div>{_stack(bar.parts, scale, capacity)}'
        f'<div class="bar-size">{escaped(bar.size)}</div>'
        for bar in bars.bars
    )
    mark = (
        f'<p class="note">capacity: {escaped(format_bytes(capacity))}, the line across the bars</p>' if capacity else ""
    )
    return f'<div class="bars">{"".join(rows)}</div>{mark}{_legend(categories_of(bar.parts for bar in bars.bars))}'


def _stack(parts: Sequence[Part], scale: int, capacity_bytes: int | None) -> str:
    total = sum(part.size_bytes for part in parts)
    cells = "".join(_part(part, scale, total) for part in parts if part.size_bytes)
    return f'<div class="stack">{cells}{_mark(capacity_bytes, scale) if capacity_bytes else ""}</div>'


def _mark(capacity_bytes: int, scale: int) -> str:
    return f'<i class="capacity" style="left:{capacity_bytes / scale:.3%}"></i>'


def _part(part: Part, scale: int, total: int) -> str:
    share = part.size_bytes / scale
    tip = f"{part.category.value}: {format_bytes(part.size_bytes)}, {format_share(part.size_bytes, total)}"
    letter = CATEGORY_LETTERS[part.category] if share >= NARROWEST_LETTER else ""
    return (
        f'<span class="part" data-category="{part.category.value}" style="width:{share:.3%}" title="{escaped(tip)}">'
        f"{escaped(letter)}</span>"
    )


def _legend(categories: Sequence[Category], sizes: Mapping[Category, int] = MappingProxyType({})) -> str:
    """Lower a legend.

    Args:
        categories: the entries.
        sizes: sizes in bytes to show beside the names, the largest first; empty for names alone.
    """
    largest = sorted(categories, key=lambda category: -sizes.get(category, 0))
    items = (
        f"<li>{_key(category)}{escaped(category.value)}{_aside(format_bytes(sizes[category])) if sizes else ''}</li>"
        for category in largest
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _aside(text: str) -> str:
    return f" <small>{escaped(text)}</small>"


def _key(category: Category) -> str:
    return f'<b class="key" data-category="{category.value}">{escaped(CATEGORY_LETTERS[category])}</b>'


def _table(table: Table) -> str:
    longest = [table.longest_bar(index) for index in range(len(table.columns))]
    head = "".join(map(_head, table.columns))
    body = "".join(_row(row, depth, table.columns, longest) for row, depth in table.rows_with_depth())
    foot = f"<tfoot>{_row(table.total, 0, table.columns, longest)}</tfoot>" if table.total else ""
    sortable = "" if any(row.children for row in table.rows) else " data-sortable"
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="table"><table{sortable}>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>{foot}</table></div>"
    )


def _head(column: Column) -> str:
    tag = 'th scope="col"' if column.title else "td"
    return f"<{tag}{_class(column)}>{_breakable(escaped(column.title))}</{tag[:2]}>"


def _row(row: Row, depth: int, columns: Sequence[Column], longest: Sequence[int]) -> str:
    cells = []
    for index, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        indent = f' style="--depth:{depth}"' if depth and index == 0 else ""
        content = _bar(cell, longest[index]) if isinstance(cell, Bar) else _cell(cell)
        if column.shorten is not Shorten.NEVER:
            content = _breakable(content)
        tag = 'th scope="row"' if index == 0 else "td"
        cells.append(f"<{tag}{_class(column)}{indent}>{content}</{tag.split()[0]}>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _breakable(markup: str) -> str:
    """Allow line breaks after the slashes of paths and the pluses between techniques."""
    return _BREAKS.sub(r"\g<0><wbr>", markup)


def _bar(bar: Bar, longest: int) -> str:
    width = bar.value / longest if longest else 0
    category = f' data-category="{bar.category.value}"' if bar.category else ""
    return f'<span class="cell-bar"{category} style="width:{width:.3%}"></span>'


def _cell(cell: Cell) -> str:
    if cell.link:
        key, equals, value = cell.link.partition("=")
        address = urlencode({key: clean(value)}) if equals else key
        return f'<span data-link="{escaped(address)}">{_cell(replace(cell, link=""))}</span>'
    if isinstance(cell.key, Category):
        return f"{_key(cell.key)}{escaped(cell.text)}"
    if cell.key is None or not cell.text:
        return escaped(cell.text)
    sign = escaped(UNICODE.bullets[cell.key]) if cell.is_verdict else ""
    return f'<span class="tone-{cell.key.value}">{sign}{escaped(cell.text)}</span>'


def _class(column: Column) -> str:
    names = [
        *(["number"] if column.align is Align.RIGHT else []),
        *(["long"] if column.shorten is not Shorten.NEVER else []),
    ]
    return f' class="{" ".join(names)}"' if names else ""


def _bullet(note: Note) -> str:
    return escaped(UNICODE.bullets[note.tone])


def chart_svg(chart: StackedChart) -> str:
    """Draw the chart as stacked areas, in the order of each moment's parts. The page shows exact numbers beside it."""
    top_bytes = max(moment.total_bytes for moment in chart.moments)
    edges = _edges(chart.moments)
    paths = (
        f'<path data-category="{category.value}" d="{_area(lower, upper, top_bytes)}"/>'
        for category, (lower, upper) in edges.items()
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="live bytes over '
        f'program order, stacked by category">{"".join(paths)}</svg>'
    )


def _edges(moments: Sequence[Moment]) -> dict[Category, tuple[list[int], list[int]]]:
    """Return the lower and upper edges of each category's area at each moment, in bytes above zero."""
    order = dict.fromkeys(part.category for moment in moments for part in moment.parts)
    edges: dict[Category, tuple[list[int], list[int]]] = {category: ([], []) for category in order}
    for moment in moments:
        sizes = {part.category: part.size_bytes for part in moment.parts}
        ground = 0
        for category, (lower, upper) in edges.items():
            lower.append(ground)
            ground += sizes.get(category, 0)
            upper.append(ground)
    return edges


def _area(lower: Sequence[int], upper: Sequence[int], top_bytes: int) -> str:
    """Return the SVG path of an area: in steps along its upper edge, then back along its lower edge."""
    width = _WIDTH / len(upper)
    there = _steps(
        [_HEIGHT * (1 - size / top_bytes) for size in upper], [index * width for index in range(len(upper))], width
    )
    back = _steps(
        [_HEIGHT * (1 - size / top_bytes) for size in reversed(lower)],
        [index * width for index in reversed(range(1, len(lower) + 1))],
        -width,
    )
    return f"M{there}L{back}Z"


def _steps(heights: Sequence[float], starts: Sequence[float], width: float) -> str:
    """Return the points of a step line with one level for each height; equal neighbours share a level."""
    points: list[str] = []
    for index, (height, start) in enumerate(zip(heights, starts, strict=True)):
        if index and height == heights[index - 1]:
            points.pop()
        else:
            points.append(f"{start:.1f},{height:.1f}")
        points.append(f"{start + width:.1f},{height:.1f}")
    return "L".join(points)
