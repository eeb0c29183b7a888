"""A report as a piece of HTML for a notebook's cell: a bar, two tables, no script.

It brings its style along, for itself alone, and takes the colours of text and background from where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.comparison import Comparison
from memprof.analysis.report import Report
from memprof.reports.choices import Order
from memprof.reports.document import Block, Heading
from memprof.reports.views import header
from memprof.reports.views.buffers import largest_buffers_table
from memprof.reports.views.categories import category_table
from memprof.reports.views.compare.bars import footprint_bars
from memprof.reports.views.compare.header import title as comparison_title
from memprof.reports.views.compare.rows import compared_rows
from memprof.reports.views.compare.table import configuration_table
from memprof.reports.web.blocks import block_html
from memprof.reports.web.page import asset, palette_css

_NUM_BUFFERS = 5


def html_fragment(report: Report) -> str:
    """What one looks at first: whether it fits, what the footprint is made of, and the largest buffers."""
    blocks: list[Block] = [header.title(report), header.gauge(report), category_table(report.categories)]
    if report.buffers:
        blocks.append(Heading(text="Largest buffers at the peak", level=2))
        blocks.append(largest_buffers_table(report.buffers, top=_NUM_BUFFERS))
    return _fragment(blocks)


def comparison_fragment(comparison: Comparison) -> str:
    """The footprints of all configurations as bars, and their table."""
    rows = compared_rows(comparison, Order.GIVEN)
    blocks: list[Block] = [comparison_title(comparison)]
    if rows:
        blocks += [footprint_bars(rows), configuration_table(rows, comparison.failures)]
    return _fragment(blocks)


def _fragment(blocks: Sequence[Block]) -> str:
    style = f"{palette_css(scope='.memprof')}\n{asset('fragment.css')}"
    return f'<div class="memprof">\n<style>\n{style}\n</style>\n{"".join(map(block_html, blocks))}\n</div>'
