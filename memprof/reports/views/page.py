"""The sections of a report's page, in order: an overview first, then sections to look things up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memprof.analysis.records.report import Report
from memprof.reports.document import Block, Heading
from memprof.reports.views import header
from memprof.reports.views.cells import category_table, group_legend
from memprof.reports.views.measured import measured_blocks, measured_summary, operation_blocks
from memprof.reports.views.mesh import mesh_blocks
from memprof.reports.views.modules import module_table
from memprof.reports.views.report import notes, timeline_chart, warnings


def first_sections(report: Report) -> Mapping[str, Sequence[Block]]:
    """Build the sections of the verdict and the timeline, by title."""
    overview = (
        header.subject_heading(report),
        *header.pressure_notes(report),
        replace(header.gauge(report), with_sizes=True),
        *header.time_facts(report),
        *measured_summary(report),
        *warnings(report),
    )
    sections: dict[str, Sequence[Block]] = {"Overview": overview}
    if report.live_peak_bytes and report.timeline.num_positions:
        chart = timeline_chart(report.timeline, live_peak_bytes=report.live_peak_bytes)
        sections["Timeline"] = (_heading("Timeline", "live bytes over program order"), chart)
    return sections


def later_sections(report: Report, *, depth: int, top: int) -> Mapping[str, Sequence[Block]]:
    """Build the sections of the tables and the setup, by title.

    Args:
        report: the facts.
        depth: the number of levels of the module tree.
        top: the largest number of rows in a list.
    """
    sections: dict[str, Sequence[Block]] = {
        "Categories": (_heading("Categories", "contents of the footprint"), category_table(report.categories)),
        "Measured": (*measured_blocks(report), *operation_blocks(report, top=top)),
        "Mesh": mesh_blocks(report),
        "Modules": (
            _heading("Modules", f"{depth} levels, equal layers together"),
            module_table(report.modules, depth=depth, top=top),
            group_legend(),
        ),
        "Setup": (
            _heading("Setup", "program, target and tools"),
            header.setup_facts(report),
            header.memory_facts(report),
            *header.configuration(report),
            *notes(report),
        ),
    }
    return {title: blocks for title, blocks in sections.items() if blocks}


def _heading(text: str, aside: str) -> Heading:
    return Heading(text=text, level=2, aside=aside)
