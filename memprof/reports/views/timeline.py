"""Live bytes over program order, stacked by category."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.timeline import Column, Timeline
from memprof.reports.document import Moment, Part, StackedChart
from memprof.reports.units import format_bytes

# More than a terminal has columns. A format that has fewer keeps the highest moment of each, so no peak gets lost.
_RESOLUTION = 480
_PASSES = frozenset({Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.UPDATE})


def timeline_chart(timeline: Timeline, *, live_peak_bytes: int) -> StackedChart:
    """The whole program, cut into slices of equal length, each at its highest moment."""
    # What is live from beginning to end lies at the bottom, so that what comes and goes is seen on level ground.
    order = sorted(Category, key=lambda category: category not in timeline.base)
    position = f"position {timeline.peak_position:,} of {timeline.num_positions:,}"
    return StackedChart(
        moments=tuple(_moment(column, order) for column in timeline.columns(_RESOLUTION)),
        mark=f"peak {format_bytes(live_peak_bytes)}, {position}",
    )


def _moment(column: Column, order: list[Category]) -> Moment:
    parts = tuple(
        Part(category=category, size_bytes=column.categories[category])
        for category in order
        if column.categories.get(category)
    )
    return Moment(parts=parts, band=column.phase.value if column.phase in _PASSES else "")
