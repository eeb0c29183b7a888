"""Perfetto: a trace of live bytes over program order, for ui.perfetto.dev and chrome://tracing.

The trace is JSON in Chrome's Trace Event Format. Time is program order: each position of the schedule takes one
microsecond. Each configuration is a process with these tracks:

- a counter for each category, and one for all live bytes;
- the phases;
- the running modules, nested by their paths;
- flame graphs of the peak by stack, module and category. Their full width represents all live bytes, and the arguments
  of each slice contain its bytes.

`otherData` contains the facts outside of the timeline (totals, categories, effects) in whole bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from memprof.analysis.comparison import ReportComparison
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import ModuleSpan, Timeline
from memprof.reports.format import Format
from memprof.reports.json.types import Json
from memprof.reports.options import RenderOptions
from memprof.reports.views.hierarchies import Hierarchy, Paths, Weighted, array_name, grouped, total_bytes

_PHASES, _MODULES, _FLAMES = 1, 2, 3  # threads of a process; flame graphs begin at the third
_SMALLEST = 0.001  # microseconds; the viewer's resolution is a nanosecond


def render_report(report: Report, options: RenderOptions) -> str:
    """Render the trace of one report. The options are ignored, because a viewer can zoom."""
    del options
    return _text([report], {"memprof": _totals(report)})


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str:
    """Render one process for each configuration; all begin at the same time."""
    del options
    effects = zip(comparison.rows, comparison.effects, strict=True)
    other: dict[str, Json] = {
        "baseline": comparison.baseline,
        "rows": [
            {
                **_totals(row),
                "footprint_delta_bytes": effect.footprint_delta_bytes,
                "categories_delta": {name.value: effect.categories_delta[name] for name in Category},
            }
            for row, effect in effects
        ],
        "failures": [{"label": failure.label, "reason": failure.reason} for failure in comparison.failures],
    }
    return _text(comparison.rows, other)


def render_diff(diff: ReportComparison, options: RenderOptions) -> str:
    """Render one process for each side; both begin at the same time."""
    del options
    before, after = diff.rows
    other: dict[str, Json] = {
        "before": _totals(before),
        "after": _totals(after),
        "footprint_delta_bytes": after.footprint_bytes - before.footprint_bytes,
    }
    return _text(diff.rows, other)


def _text(reports: Sequence[Report], other: Mapping[str, Json]) -> str:
    """Encode a trace with one line for each event, so that it is also readable and searchable as text."""
    events = [event for number, report in enumerate(reports, start=1) for event in _events(report, number)]
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ns",\n"otherData": {json.dumps(other)},\n"traceEvents": [\n{lines}\n]}}\n'


def _totals(report: Report) -> dict[str, Json]:
    return {
        "label": report.label,
        "target": report.target.name,
        "footprint_bytes": report.footprint_bytes,
        "live_peak_bytes": report.live_peak_bytes,
        "peak_position": report.timeline.peak_position,
        "categories": {category.value: report.categories[category] for category in Category},
    }


def _events(report: Report, process: int) -> Iterator[dict[str, Json]]:
    yield _name("process_name", f"{report.label} on {report.target.name}", process, 0)
    yield _name("thread_name", "phases", process, _PHASES)
    yield _name("thread_name", "modules", process, _MODULES)
    yield from _counters(report.timeline, process)
    for span in report.timeline.phases:
        yield _slice(span.phase.value, span.start, span.end, process, _PHASES)
    for path, start, end in _nested(report.timeline.modules):
        yield _slice(path, start, end, process, _MODULES)
    paths = Paths(report)
    for thread, hierarchy in enumerate(Hierarchy, start=_FLAMES):
        yield _name("thread_name", f"live peak by {hierarchy.value}, widths are bytes", process, thread)
        weighted = [((*paths.of(each, hierarchy), array_name(each)), each.size_bytes) for each in report.buffers]
        scale = report.timeline.num_positions / max(report.live_peak_bytes, 1)
        yield from _flames(weighted, 0, scale, process, thread)


def _flames(weighted: Weighted, start_bytes: int, scale: float, process: int, thread: int) -> Iterator[dict[str, Json]]:
    """Yield nested slices for paths that share a prefix. Slices too short to be seen are omitted.

    Args:
        weighted: paths with their bytes.
        start_bytes: the bytes before the first slice.
        scale: microseconds for each byte.
        process, thread: the track.
    """
    for name, members in grouped(weighted):
        size_bytes = total_bytes(members)
        start, end = (round(scale * at, 3) for at in (start_bytes, start_bytes + size_bytes))
        if end - start >= _SMALLEST:
            place: dict[str, Json] = {"pid": process, "tid": thread, "ts": start, "dur": round(end - start, 3)}
            yield {"ph": "X", "name": name, **place, "args": {"bytes": size_bytes}}
            yield from _flames(members, start_bytes, scale, process, thread)
        start_bytes += size_bytes


def _name(kind: str, name: str, process: int, thread: int) -> dict[str, Json]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, start: int, end: int, process: int, thread: int) -> dict[str, Json]:
    """Make a slice from the beginning of position `start` to the end of position `end`."""
    return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": start, "dur": end - start + 1}


def _counters(timeline: Timeline, process: int) -> Iterator[dict[str, Json]]:
    """Yield a counter value for each category at each position where it changes: its value at the highest moment.

    Several buffers may be allocated and freed at one position. The moment with the most live bytes is kept, as in all
    pictures of memprof, so that the track and the report have the same peak. Later changes at that position appear at
    the next position.
    """
    live = dict(timeline.base)
    written: dict[Category, int] = {}
    written_total = -1
    for position, best in _highest(timeline, live):
        total = sum(best.values())
        if total != written_total:
            yield _counter("live bytes", position, total, process)
            written_total = total
        for category, size_bytes in best.items():
            if written.get(category, 0) != size_bytes or (position == 0 and size_bytes):
                yield _counter(category.value, position, size_bytes, process)
                written[category] = size_bytes


def _highest(timeline: Timeline, live: dict[Category, int]) -> Iterator[tuple[int, dict[Category, int]]]:
    """Yield the live bytes by category at the highest moment of the first position and of each that has changes."""
    index = 0
    position = 0
    while True:
        best, best_total = dict(live), sum(live.values())
        total = best_total
        highest_is_old = True
        while index < len(timeline.changes) and timeline.changes[index].position == position:
            change = timeline.changes[index]
            live[change.category] = live.get(change.category, 0) + change.delta_bytes
            total += change.delta_bytes
            index += 1
            if highest_is_old or total > best_total:
                best, best_total, highest_is_old = dict(live), total, False
        yield position, best
        if index >= len(timeline.changes):
            if best != live:
                yield min(position + 1, max(timeline.num_positions, 1)), dict(live)
            return
        following = timeline.changes[index].position
        if best != live and following > position + 1:
            yield position + 1, dict(live)
        position = following


def _counter(name: str, position: int, size_bytes: int, process: int) -> dict[str, Json]:
    return {"ph": "C", "name": name, "pid": process, "ts": position, "args": {"bytes": size_bytes}}


def _nested(spans: Iterable[ModuleSpan]) -> Iterator[tuple[str, int, int]]:
    """Yield slices of modules and their parents; adjacent modules under one parent share the parent's slice."""
    open_slices: list[tuple[str, int, int]] = []
    for span in spans:
        parts = span.path.split("/")
        paths = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        adjoins = bool(open_slices) and open_slices[0][2] + 1 == span.start
        shared = 0
        while adjoins and shared < min(len(paths), len(open_slices)) and open_slices[shared][0] == paths[shared]:
            shared += 1
        yield from open_slices[shared:]
        extended = [(path, start, span.end) for path, start, _ in open_slices[:shared]]
        open_slices = [*extended, *((path, span.start, span.end) for path in paths[shared:])]
    yield from open_slices


FORMAT = Format(
    name="perfetto",
    suffix=".perfetto.json",
    summary="live bytes by category, phases and modules over program order, and the peak as flame graphs, for "
    "ui.perfetto.dev and chrome://tracing",
    render_report=render_report,
    render_comparison=render_comparison,
    render_diff=render_diff,
)
