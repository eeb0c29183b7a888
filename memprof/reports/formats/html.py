"""HTML: one file that opens offline in any browser, with interactive charts, and tables to search and sort.

The file contains the document that the terminal shows, and the data of its scripts. The document is complete without
JavaScript and in print. A notebook shows a fragment instead: a bar, tables and a chart, without scripts. Its style
applies only to itself, and it inherits the colours of text and background from the notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from memprof.analysis.comparison import ReportComparison
from memprof.analysis.records.report import Report
from memprof.reports.document import Block, Document, Heading
from memprof.reports.format import Format, report_document
from memprof.reports.options import Order, RenderOptions
from memprof.reports.views import header
from memprof.reports.views.buffers import largest_buffers_table
from memprof.reports.views.cells import category_table
from memprof.reports.views.comparison import comparison_document, comparison_title
from memprof.reports.views.configurations import compared_rows, configuration_table, footprint_bars
from memprof.reports.views.diff import diff_document
from memprof.reports.views.page import first_sections, later_sections
from memprof.reports.views.report import timeline_chart
from memprof.reports.web.advice import advice_section
from memprof.reports.web.blocks import block_html, section_of, sections_of
from memprof.reports.web.page import Section, asset, page, palette_css
from memprof.reports.web.report_data import lines_of, report_data, source_texts

_TABLE_SCRIPTS = ("dom.js", "address.js", "legend.js", "tables.js", "static.js")
_CHART_SCRIPTS = (
    *("units.js", "data.js", "pointer.js", "plot.js", "timeline.js", "flame.js", "address_map.js"),
    *("details.js", "buffers.js", "explore.js"),
)
# The sections that scripts draw, by their titles in the table of contents.
_EXPLORED = {"Flame graph": "flame.html", "Buffers": "buffers.html", "Addresses": "addresses.html"}
_LARGEST = "<!-- largest -->"  # replaced by a table for browsers without scripts
_NUM_BUFFERS = 5


def render_report(report: Report, options: RenderOptions) -> str:
    """Render the summary with its interactive sections, or one breakdown as a page of tables."""
    title = f"{report.label} - memprof"
    if options.by is not None or not report.buffers:
        return _page_of_tables(title, report_document(report, replace(options, with_advice=True)))
    advice = options.advice_for(report)
    later = later_sections(report, depth=options.depth, top=options.top)
    largest = block_html(largest_buffers_table(report.buffers, top=options.top))
    buffers = (*report.buffers, *report.temp_buffers)
    sources = source_texts(lines_of(buffers), report.source_lines) if options.source else {}
    return page(
        title=title,
        sections=[
            *(section_of(*each) for each in first_sections(report).items()),
            advice_section(report, advice, of_step=options.of_step),
            *(
                Section(title=name, html=asset(file).replace(_LARGEST, f"<noscript>{largest}</noscript>"))
                for name, file in _EXPLORED.items()
            ),
            *(section_of(*each) for each in later.items()),
        ],
        scripts=(*_TABLE_SCRIPTS, *_CHART_SCRIPTS),
        data=report_data(report, sources, editor=options.editor if options.source else "", advice=advice),
    )


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str:
    """Render the comparison with the differences by category and module, or the differences by one key."""
    options = replace(options, with_configuration=True)
    document = comparison_document(comparison, options, with_differences=True)
    return _page_of_tables("comparison - memprof", document)


def render_diff(diff: ReportComparison, options: RenderOptions) -> str:
    """Render the changes from one report to another as sortable tables."""
    return _page_of_tables("diff - memprof", diff_document(diff, options))


def lower(document: Document, options: RenderOptions) -> str:
    """Render any other document with sortable tables."""
    del options
    titles = [block.text for block in document.blocks if isinstance(block, Heading)]
    return _page_of_tables(f"{titles[0]} - memprof" if titles else "memprof", document)


def _page_of_tables(title: str, document: Document) -> str:
    return page(title=title, sections=sections_of(document), scripts=(*_TABLE_SCRIPTS, "rows.js"))


def html_fragment(report: Report) -> str:
    """Render a report for a notebook: verdict, categories, timeline, largest buffers, and the whole page, folded."""
    blocks: list[Block] = [header.title(report), header.gauge(report), category_table(report.categories)]
    if report.buffers:
        blocks.append(timeline_chart(report.timeline, live_peak_bytes=report.live_peak_bytes))
        blocks.append(Heading(text="Largest buffers at the peak", level=2))
        blocks.append(largest_buffers_table(report.buffers, top=_NUM_BUFFERS))
    # The page gets its own frame: notebooks do not run scripts in output, and the page must not change their style.
    whole = escape(render_report(report, RenderOptions()))
    frame = f'<iframe sandbox="allow-scripts" loading="lazy" title="the whole report" srcdoc="{whole}"></iframe>'
    return _fragment(blocks, after=f"<details><summary>The whole report</summary>{frame}</details>")


def comparison_fragment(comparison: ReportComparison) -> str:
    """Render a comparison for a notebook: the footprints of all configurations as bars, and their table."""
    rows = compared_rows(comparison, Order.GIVEN)
    blocks: list[Block] = [comparison_title(comparison)]
    if rows:
        blocks += [footprint_bars(rows), configuration_table(rows, comparison.failures)]
    return _fragment(blocks)


def document_fragment(document: Document) -> str:
    """Render any other document for a notebook."""
    return _fragment(document.blocks)


def _fragment(blocks: Sequence[Block], *, after: str = "") -> str:
    style = f"{palette_css(scope='.memprof')}\n{asset('fragment.css')}"
    return f'<div class="memprof">\n<style>\n{style}\n</style>\n{"".join(map(block_html, blocks))}{after}\n</div>'


FORMAT = Format(
    name="html",
    suffix=".html",
    summary="one page to explore in a browser, offline: charts to hover and zoom, tables to search and sort",
    render_report=render_report,
    render_comparison=render_comparison,
    render_diff=render_diff,
    compares_sums=True,
    lower=lower,
    is_file=True,
)
