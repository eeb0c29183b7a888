"""The Perfetto trace: counters, slices, and that nothing is lost between a report and its trace."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from comparisons_data import COMPARISONS
from diffs_data import DIFFS
from reports_data import REPORTS
from stacked_report import stacked

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.timeline import LiveChange, ModuleSpan, PhaseSpan, Timeline
from memprof.reports.formats.perfetto import FORMAT
from memprof.reports.options import RenderOptions

# Eight bytes of params throughout. At position 2 activations of 16 take the memory of 4 forward temps: 24 after a death
# and a birth. At position 3 gradients of 2 come while the activations are still there: 26, the peak.
TIMELINE = Timeline(
    num_positions=6,
    base={Category.PARAMS: 8},
    changes=(
        LiveChange(1, Category.FORWARD_TEMPS, 4),
        LiveChange(2, Category.FORWARD_TEMPS, -4),
        LiveChange(2, Category.ACTIVATIONS, 16),
        LiveChange(3, Category.GRADIENTS, 2),
        LiveChange(3, Category.ACTIVATIONS, -16),
        LiveChange(4, Category.GRADIENTS, -2),
    ),
    phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=2), PhaseSpan(phase=Phase.BACKWARD, start=3, end=5)),
    peak_position=3,
    modules=(
        ModuleSpan(path="layers_0/attention", start=0, end=0),
        ModuleSpan(path="layers_0/mlp", start=1, end=2),
        ModuleSpan(path="head", start=3, end=3),
        ModuleSpan(path="head", start=5, end=5),
    ),
)


def _events(**changes: Any) -> list[dict[str, Any]]:
    report = replace(REPORTS["one_buffer"](), timeline=TIMELINE, **changes)
    events: list[dict[str, Any]] = json.loads(FORMAT.render_report(report, RenderOptions()))["traceEvents"]
    return events


def _counter(events: list[dict[str, Any]], name: str) -> list[tuple[int, int]]:
    return [(event["ts"], event["args"]["bytes"]) for event in events if event["ph"] == "C" and event["name"] == name]


def test_each_category_is_a_counter_of_the_highest_moment() -> None:
    events = _events()
    assert _counter(events, "live bytes") == [(0, 8), (1, 12), (2, 24), (3, 26), (4, 8)]
    assert _counter(events, "params") == [(0, 8)]
    assert _counter(events, "forward_temps") == [(1, 4), (2, 0)]
    # They die at position 3, after the gradients have come: the highest moment of that position has both.
    assert _counter(events, "activations") == [(2, 16), (4, 0)]
    assert _counter(events, "gradients") == [(3, 2), (4, 0)]


def test_phases_are_slices_that_follow_one_another() -> None:
    slices = [event for event in _events() if event["ph"] == "X" and event["tid"] == 1]
    assert [(event["name"], event["ts"], event["dur"]) for event in slices] == [("forward", 0, 3), ("backward", 3, 3)]


def test_modules_are_slices_inside_those_around_them() -> None:
    slices = [event for event in _events() if event["ph"] == "X" and event["tid"] == 2]
    assert sorted((event["ts"], -event["dur"], event["name"]) for event in slices) == [
        (0, -3, "layers_0"),
        (0, -1, "layers_0/attention"),
        (1, -2, "layers_0/mlp"),
        (3, -1, "head"),
        (5, -1, "head"),
    ]


def test_the_peak_is_a_flame_graph_as_wide_as_the_program_is_long() -> None:
    report = stacked()  # 16 MiB over three positions
    events = json.loads(FORMAT.render_report(report, RenderOptions()))["traceEvents"]
    by_stack = [event for event in events if event["ph"] == "X" and event["tid"] == 3]
    assert (
        sum(event["args"]["bytes"] for event in by_stack if event["name"].startswith(("step (", "(a", "(no s")))
        == 16 * 2**20
    )
    first, *_, last = sorted(by_stack, key=lambda event: (event["ts"], -event["dur"]))
    assert (first["name"], first["ts"], first["dur"]) == ("step (train.py)", 0, round(3 * 14 / 16, 3))
    assert last["ts"] + last["dur"] == 3


@pytest.mark.parametrize("name", [name for name in REPORTS if REPORTS[name]().timeline.num_positions])
def test_the_peak_of_the_counter_is_that_of_the_timeline(name: str) -> None:
    timeline = REPORTS[name]().timeline
    events = json.loads(FORMAT.render_report(REPORTS[name](), RenderOptions()))["traceEvents"]
    highest = max((size for _, size in _counter(events, "live bytes")), default=0)
    assert highest == max(column.live_bytes for column in timeline.slices(timeline.num_positions))


def test_slices_of_one_track_nest_or_follow() -> None:
    flames = json.loads(FORMAT.render_report(stacked(), RenderOptions()))["traceEvents"]
    for track, events in ((2, _events()), (3, flames), (4, flames), (5, flames)):
        slices = [event for event in events if event["ph"] == "X" and event["tid"] == track]
        assert slices
        assert [pair for pair in product(slices, slices) if _cross(*pair)] == []


def _cross(first: dict[str, Any], second: dict[str, Any]) -> bool:
    (a, b), (start, end) = ((each["ts"], round(each["ts"] + each["dur"], 3)) for each in (first, second))
    inside = a <= start and end <= b
    around = start <= a and b <= end
    apart = end <= a or b <= start
    return not (inside or around or apart)


def test_each_configuration_is_a_process() -> None:
    comparison = COMPARISONS["techniques"]()
    trace = json.loads(FORMAT.render_comparison(comparison, RenderOptions()))
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == [f"{row.label} on {row.target.name}" for row in comparison.rows]
    assert len(trace["otherData"]["rows"]) == len(comparison.rows)
    first, second = trace["otherData"]["rows"][:2]
    assert (first["footprint_delta_bytes"], {*first["categories_delta"].values()}) == (0, {0})
    assert second["footprint_delta_bytes"] == second["footprint_bytes"] - first["footprint_bytes"] != 0
    assert sum(second["categories_delta"].values()) == second["footprint_delta_bytes"]
    assert {event["pid"] for event in trace["traceEvents"]} == {*range(1, len(comparison.rows) + 1)}


@pytest.mark.parametrize("name", DIFFS)
def test_both_sides_of_a_diff_are_processes_beside_their_difference(name: str) -> None:
    made = DIFFS[name]()
    before, after = made.rows
    trace = json.loads(FORMAT.render_diff(made, RenderOptions()))
    sizes = {side: trace["otherData"][side]["footprint_bytes"] for side in ("before", "after")}
    assert sizes == {"before": before.footprint_bytes, "after": after.footprint_bytes}
    assert trace["otherData"]["footprint_delta_bytes"] == after.footprint_bytes - before.footprint_bytes
    assert {event["pid"] for event in trace["traceEvents"]} == {1, 2}
