"""What the scripts of a report's page draw from: all buffers and the timeline, as a JSON object.

Lists stand by field, not by buffer, and equal texts stand once (`strings`): twenty thousand buffers take a megabyte.
The buffers that are live at the peak come first, largest first; `num_at_peak` says how many they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from memprof.analysis.categories import CATEGORY_MEANINGS, Category
from memprof.analysis.report import LiveBuffer, Report
from memprof.analysis.timeline import Timeline
from memprof.reports.json_objects import Json
from memprof.reports.palette import CATEGORY_COLORS, CATEGORY_LETTERS, INK
from memprof.reports.units import format_array_type
from memprof.reports.views.sources import short_names
from memprof.reports.web.source_text import SourceText
from memprof.reports.web.text import clean

_NUMBERS: Mapping[Category, int] = {category: number for number, category in enumerate(Category)}


class _Strings:
    """Texts by their number; each is kept once, and clean."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[Json]:
        return [clean(text) for text in self._numbers]


def report_data(report: Report, sources: Mapping[str, SourceText]) -> dict[str, Json]:
    """The JSON object of one report.

    Args:
        report: the facts.
        sources: the text around the source lines, where it is to be shown.
    """
    at_peak = {buffer.held for buffer in report.buffers}
    buffers = [*report.buffers, *(buffer for buffer in report.temp_buffers if buffer.held not in at_peak)]
    strings = _Strings()
    names = short_names(buffer.source for buffer in buffers)
    return {
        "footprint_bytes": report.footprint_bytes,
        "live_peak_bytes": report.live_peak_bytes,
        "ink": INK,
        "categories": [
            {
                "name": category.value,
                "letter": CATEGORY_LETTERS[category],
                "color": CATEGORY_COLORS[category],
                "meaning": CATEGORY_MEANINGS[category],
            }
            for category in Category
        ],
        "num_at_peak": len(report.buffers),
        "buffers": _buffers(buffers, names, strings),
        "timeline": _timeline(report.timeline),
        "sources": {
            str(strings.number(names[source])): {
                "first_line": text.first_line,
                "line": int(source.rpartition(":")[2]),
                "lines": [clean(line) for line in text.lines],
            }
            for source, text in sources.items()
        },
        "strings": strings.texts,
    }


def _buffers(buffers: list[LiveBuffer], names: Mapping[str, str], strings: _Strings) -> Json:
    return {
        "size_bytes": [buffer.size_bytes for buffer in buffers],
        "category": [_NUMBERS[buffer.category] for buffer in buffers],
        "array": [strings.number(format_array_type(buffer.dtype, buffer.shape)) for buffer in buffers],
        "module": [strings.number(buffer.module) for buffer in buffers],
        "phase": [strings.number(buffer.phase.value) for buffer in buffers],
        "name": [strings.number(buffer.name) for buffer in buffers],
        "op": [strings.number(buffer.op) for buffer in buffers],
        "source": [strings.number(names[buffer.source]) for buffer in buffers],
        "why": [strings.number(f"{buffer.rule}: {buffer.evidence}") for buffer in buffers],
        "start": [buffer.start for buffer in buffers],
        "end": [buffer.end for buffer in buffers],
        "offset": [buffer.offset for buffer in buffers],
        "born": [buffer.held and buffer.held[0] for buffer in buffers],
        "died": [buffer.held and buffer.held[1] for buffer in buffers],
    }


def _timeline(timeline: Timeline) -> Json:
    return {
        "num_positions": timeline.num_positions,
        "peak_position": timeline.peak_position,
        "base": [timeline.base.get(category, 0) for category in Category],
        "position": [change.position for change in timeline.changes],
        "category": [_NUMBERS[change.category] for change in timeline.changes],
        "delta_bytes": [change.delta_bytes for change in timeline.changes],
        "phases": [[span.phase.value, span.start, span.end] for span in timeline.phases],
    }
