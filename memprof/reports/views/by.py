"""One breakdown by itself: `memprof show CAPTURE --by KEY`."""

from __future__ import annotations

from memprof.analysis.categories import Phase
from memprof.analysis.report import Report
from memprof.reports.choices import By
from memprof.reports.document import Document, Heading, Table
from memprof.reports.views import header
from memprof.reports.views.buffers import buffer_table
from memprof.reports.views.categories import category_table
from memprof.reports.views.cells import share_table
from memprof.reports.views.groups import group_legend
from memprof.reports.views.modules import module_table
from memprof.reports.views.notes import notes
from memprof.reports.views.sources import short_names


def by_document(report: Report, *, by: By, depth: int, top: int) -> Document:
    """One table of the footprint (for buffers: of the live peak), with the head that it needs.

    Args:
        report: the facts.
        by: what the bytes are added up by.
        depth: levels, where `by` is the module.
        top: rows; the rest is summed up in one.
    """
    return Document(
        blocks=(
            header.title(report),
            header.gauge(report),
            Heading(text=f"By {by.value}", level=2),
            _table(report, by=by, depth=depth, top=top),
            *((group_legend(),) if by is By.MODULE else ()),
            *notes(report),
        )
    )


def _table(report: Report, *, by: By, depth: int, top: int) -> Table:
    match by:
        case By.CATEGORY:
            return category_table(report.categories)
        case By.MODULE:
            return module_table(report.modules, depth=depth, top=top)
        case By.SOURCE:
            names = short_names(report.by_source)
            sizes = {names[source]: size_bytes for source, size_bytes in report.by_source.items()}
            return share_table("source", sizes, nameless="(no source line)", top=top)
        case By.DTYPE:
            return share_table("dtype", report.by_dtype, nameless="(no dtype)", top=top)
        case By.PHASE:
            phases = {phase_name(phase): size_bytes for phase, size_bytes in report.by_phase.items()}
            return share_table("phase", phases, nameless="(no phase)", top=top)
        case By.BUFFER:
            return buffer_table(report.buffers, top=top)


def phase_name(phase: Phase) -> str:
    """The phase, empty for what belongs to none."""
    return "" if phase is Phase.NONE else phase.value
