"""The summary: everything that one looks at first, on one page."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.report import Report
from memprof.reports.document import Block, Document, Heading
from memprof.reports.views import header
from memprof.reports.views.advice import advice_blocks
from memprof.reports.views.buffers import largest_buffers_table
from memprof.reports.views.categories import category_table
from memprof.reports.views.groups import group_legend
from memprof.reports.views.measured import measured_blocks
from memprof.reports.views.modules import module_table
from memprof.reports.views.notes import notes
from memprof.reports.views.operations import operation_blocks
from memprof.reports.views.timeline import timeline_chart
from memprof.studies.advice.advice import Advice

DEFAULT_TOP = 10


def summary_document(report: Report, *, depth: int, top: int, advice: Sequence[Advice] | None = None) -> Document:
    """Header, measurements, categories, timeline, modules, buffers, advice, configuration, notes.

    Args:
        report: the facts.
        depth: levels of the module tree.
        top: rows of the longest lists.
        advice: what could be done about the peak; None: nothing is said of it.
    """
    return Document(
        blocks=(
            header.title(report),
            header.setup_facts(report),
            Heading(text="Memory", level=2),
            header.gauge(report),
            header.memory_facts(report),
            *measured_blocks(report),
            *operation_blocks(report, top=top),
            Heading(text="What the footprint is made of", level=2),
            category_table(report.categories),
            *_timeline(report),
            *_modules(report, depth=depth, top=top),
            *_buffers(report, top=top),
            *(advice_blocks(report, advice) if advice is not None else ()),
            *header.configuration(report),
            Heading(text="Notes", level=2),
            *notes(report),
        )
    )


def _timeline(report: Report) -> tuple[Block, ...]:
    if not report.live_peak_bytes or not report.timeline.num_positions:
        return ()
    chart = timeline_chart(report.timeline, live_peak_bytes=report.live_peak_bytes)
    return (Heading(text="Live bytes over program order", level=2), chart)


def _modules(report: Report, *, depth: int, top: int) -> tuple[Block, ...]:
    if not report.modules.children:
        return ()
    return (
        Heading(text="By module", level=2, aside=f"{depth} levels, equal layers together"),
        module_table(report.modules, depth=depth, top=top),
        group_legend(),
    )


def _buffers(report: Report, *, top: int) -> tuple[Block, ...]:
    if not report.buffers:
        return ()
    return (
        Heading(text="Largest buffers at the peak", level=2, aside="alike ones of all layers together"),
        largest_buffers_table(report.buffers, top=top),
    )
