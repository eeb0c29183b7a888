"""The data of a report's page: all buffers and the timeline, as a JSON object for the page's scripts.

Buffers are stored as one list for each field, and equal texts are stored once (`strings`): 20,000 buffers take a
megabyte. The buffers that are live at the peak come first, largest first; `num_at_peak` is their number. The text
around a source line comes from the capture alone. No source file is opened, because a capture could name any file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memprof.analysis.records.capture import SourceLines
from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer, StackFrame, array_type
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import Timeline
from memprof.reports.document import Cell
from memprof.reports.json.types import Json
from memprof.reports.palette import CATEGORY_COLORS, CATEGORY_LETTERS, INK
from memprof.reports.views.hierarchies import Path, Paths, function_name
from memprof.reports.views.why import Labelled, order_facts, order_note, sources_of, why_facts
from memprof.reports.web.page import clean
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.what_if import changed_at_peak

_NUMBERS: Mapping[Category, int] = {category: number for number, category in enumerate(Category)}
_LINES_AROUND = 2
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[/\\]")
# Indices of the timeline's changes at which a buffer is allocated and freed.
_Changes = tuple[int, int]


class _Strings:
    """Numbers texts: each text is stored once, cleaned."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[Json]:
        return [clean(text) for text in self._numbers]


def report_data(
    report: Report, sources: Mapping[str, SourceText], *, editor: str, advice: Sequence[Advice] = ()
) -> dict[str, Json]:
    """Build the JSON object of one report.

    Args:
        report: the facts.
        sources: the text to show around source lines, by source line.
        editor: the link template for source lines (see `RenderOptions.editor`).
        advice: the advice on the peak.
    """
    buffers, changes = _numbered(report)
    strings = _Strings()
    paths = Paths(report)
    shown = {buffer.source for buffer in buffers} | set(sources) | set(sources_of(report.reasons))
    names = {source: paths.line_name(source) for source in shown}
    return {
        "footprint_bytes": report.footprint_bytes,
        "live_peak_bytes": report.live_peak_bytes,
        "ink": INK,
        "categories": [
            {
                "name": category.value,
                "letter": CATEGORY_LETTERS[category],
                "color": CATEGORY_COLORS[category],
                "meaning": category.meaning,
            }
            for category in Category
        ],
        "num_at_peak": len(report.buffers),
        "buffers": _buffers(buffers, changes, names, strings),
        "advice": {clean(each.proposal.what): _changed(report, each) for each in _of_this_plan(report, advice)},
        "live_at_peak": why_data(report, names, strings.number),
        "calls": _calls(report, paths, strings),
        "modules": _modules(buffers, paths, strings),
        **_stacks(buffers, paths, strings),
        "editor": editor,
        "files": _files(lines_of(buffers) | shown, paths) if editor else {},
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


def _numbered(report: Report) -> tuple[list[LiveBuffer], list[_Changes | None]]:
    """Return all buffers, those at the peak first, and the timeline's changes that allocate and free each of them."""
    temps = list(zip(report.temp_buffers, report.timeline.temp_changes, strict=True))
    at_peak = {buffer: changes for buffer, changes in temps if buffer.at_peak}
    others = [(buffer, changes) for buffer, changes in temps if not buffer.at_peak]
    return (
        [*report.buffers, *(buffer for buffer, _ in others)],
        [*map(at_peak.get, report.buffers), *(changes for _, changes in others)],
    )


def _buffers(
    buffers: list[LiveBuffer], changes: list[_Changes | None], names: Mapping[str, str], strings: _Strings
) -> Json:
    return {
        "size_bytes": [buffer.size_bytes for buffer in buffers],
        "category": [_NUMBERS[buffer.category] for buffer in buffers],
        "array": [strings.number(array_type(buffer.dtype, buffer.shape)) for buffer in buffers],
        "module": [strings.number(buffer.module) for buffer in buffers],
        "phase": [strings.number(buffer.phase.value) for buffer in buffers],
        "name": [strings.number(buffer.name) for buffer in buffers],
        "op": [strings.number(buffer.op) for buffer in buffers],
        "source": [strings.number(names[buffer.source]) for buffer in buffers],
        "why": [strings.number(f"{buffer.rule}: {buffer.evidence}") for buffer in buffers],
        "start": [buffer.start for buffer in buffers],
        "end": [buffer.end for buffer in buffers],
        "offset": [buffer.offset for buffer in buffers],
        "born": [each and each[0] for each in changes],
        "died": [each and each[1] for each in changes],
    }


def _of_this_plan(report: Report, advice: Sequence[Advice]) -> Sequence[Advice]:
    """Return the advice about buffers on the page; under memory pressure, advice is about another plan."""
    return advice if report.without_limit is None else ()


def _changed(report: Report, advice: Advice) -> Json:
    """Return the numbers of the buffers at the peak that a piece of advice would change."""
    changed = set(map(id, changed_at_peak(report, advice.proposal.without)))
    return [number for number, buffer in enumerate(report.buffers) if id(buffer) in changed]


def _calls(report: Report, paths: Paths, strings: _Strings) -> Json:
    """Return the distinct call paths of operations, and the number of the path of each buffer at the peak."""
    numbers: dict[Path, int] = {}
    of = [numbers.setdefault(paths.stack(buffer), len(numbers)) for buffer in report.buffers]
    return {"paths": [[strings.number(name) for name in path] for path in numbers], "of": list(of)}


def _modules(buffers: Iterable[LiveBuffer], paths: Paths, strings: _Strings) -> Json:
    """Return the names of modules with equal layers folded, by the number of the unfolded name, if they differ."""
    names = {buffer.module: None for buffer in buffers if buffer.module}
    folded = {name: "/".join(paths.module(name)) for name in names}
    return {str(strings.number(name)): strings.number(other) for name, other in folded.items() if other != name}


def _stacks(buffers: Sequence[LiveBuffer], paths: Paths, strings: _Strings) -> dict[str, Json]:
    """Return the distinct calls and stacks. A call is its line, its function, and whether it is the user's own code."""
    frames: dict[StackFrame, int] = {}
    stacks = {id(buffer.stack): buffer.stack for buffer in buffers}
    numbers = {key: number for number, key in enumerate(stacks)}
    calls: list[Json] = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in stacks.values()]
    lines = [(paths.line_name(f"{each.file}:{each.line}"), function_name(each), each.is_own) for each in frames]
    return {
        "frames": [[strings.number(line), strings.number(function), int(is_own)] for line, function, is_own in lines],
        "stacks": calls,
        "stack_of": [numbers[id(buffer.stack)] for buffer in buffers],
    }


def lines_of(buffers: Iterable[LiveBuffer]) -> set[str]:
    """Return all source lines in the sources and stacks of buffers: `file.py:12`."""
    stacks = {id(buffer.stack): buffer.stack for buffer in buffers}  # buffers of one operation share a stack object
    calls = {f"{frame.file}:{frame.line}" for stack in stacks.values() for frame in stack}
    return calls | {buffer.source for buffer in buffers}


def _files(lines: Iterable[str], paths: Paths) -> dict[str, Json]:
    """Return the absolute paths of files, by their names on the page. Files named relative to a package have none."""
    files = {line.rpartition(":")[0] for line in lines}
    return {clean(paths.file_name(file)): clean(file) for file in sorted(files) if _ABSOLUTE.match(file)}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """Consecutive lines of a file, beginning with line number `first_line`."""

    first_line: int
    lines: tuple[str, ...]


def source_texts(sources: Iterable[str], lines: SourceLines) -> dict[str, SourceText]:
    """Return the text around each source line (`file.py:12`) that the capture contains."""
    found = {source: _source_text(source, lines) for source in sorted(set(sources))}
    return {source: text for source, text in found.items() if text is not None}


def _source_text(source: str, lines: SourceLines) -> SourceText | None:
    file, _, number = source.rpartition(":")
    of_file = lines.get(file)
    if of_file is None or not number.isdecimal() or int(number) not in of_file:
        return None
    first = last = int(number)
    while first - 1 in of_file and first > int(number) - _LINES_AROUND:
        first -= 1
    while last + 1 in of_file and last < int(number) + _LINES_AROUND:
        last += 1
    return SourceText(first_line=first, lines=tuple(of_file[line] for line in range(first, last + 1)))


def why_data(report: Report, names: Mapping[str, str], number: Callable[[str], int]) -> dict[str, Json]:
    """Build the JSON object, in which texts are represented by numbers.

    A fact is a label with values; a value is a text, or a pair of a text and its link. Buffers share facts, so each
    buffer has a short list of the numbers of its facts.

    Args:
        report: the facts.
        names: the displayed names of source lines, by source line.
        number: a function that returns the number of a text.
    """
    reasons = report.reasons
    if not reasons or report.schedule is None:
        return {}
    facts: dict[Labelled, int] = {}
    of: list[Json] = [[facts.setdefault(fact, len(facts)) for fact in why_facts(why, names)] for why in reasons]
    order: list[Json] = [facts.setdefault(fact, len(facts)) for fact in order_facts(report, report.schedule)]

    def value(cell: Cell) -> Json:
        return [number(cell.text), number(cell.link)] if cell.link else number(cell.text)

    more = f"Of the {len(reasons):,} largest it says here why they are live; of others: memprof show CAPTURE --why NAME"
    return {
        "facts": [[number(label), *map(value, cells)] for label, cells in facts],
        "of": of,
        "order": order,
        "note": number(order_note(report, report.schedule).text),
        "more": number(more),
    }
