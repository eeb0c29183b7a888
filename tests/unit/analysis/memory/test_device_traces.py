"""Memory of two kinds on one device: what collectives work on has a memory space and a trace of its own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hlo import Step
from hlo_nodes import FORWARD, f32

from memprof.analysis.hlo.buffer_table import EventKind
from memprof.analysis.memory.device_traces import DeviceTrace, _positions
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category, Role
from memprof.errors import InternalError

LASTING = 16 + 4  # the argument, the result


def _capture(
    color: int, *, opcode: str = "all-gather", peak_bytes: int = LASTING + 64, num_elements: int = 4
) -> Capture:
    """`gathered` lies in memory of a colour of its own; `x` and `a` have a number of elements.

    position      1      2         3     4     5
    gathered             64 ------ 64
    others        a 16 - 16        b 32  32 -- (died)
                                         c 8
    """
    step = Step()
    x = step.argument("x", Role.BATCH, f32(num_elements))
    a = step.op("a", "multiply", f32(num_elements), [x, x], FORWARD)
    gathered = step.op("gathered", opcode, f32(16), [a], FORWARD)
    b = step.op("b", "multiply", f32(8), [gathered, gathered], FORWARD)
    c = step.op("c", "slice", f32(2), [b], FORWARD)
    step.free(a, after=gathered)
    step.result(step.op("y", "reduce", f32(1), [c], FORWARD))
    proto, capture = step.proto(), step.capture()
    _move(proto, gathered.id, color)
    totals = replace(capture.compiler, peak_memory_bytes=peak_bytes)
    return replace(capture, hlo_proto=proto.SerializeToString(), compiler=totals)


def _move(proto: Any, instruction: int, color: int) -> None:
    """Move what an instruction makes into an allocation with a trace of its own."""
    assignment = proto.buffer_assignment
    (buffer,) = [each for each in assignment.logical_buffers if each.defined_at.instruction_id == instruction]
    temp = assignment.buffer_allocations[-1]
    (place,) = [number for number, each in enumerate(temp.assigned) if each.logical_buffer_id == buffer.id]
    offset = temp.assigned[place].offset
    del temp.assigned[place]
    for each in temp.assigned:
        each.offset -= buffer.size if each.offset > offset else 0
    temp.size -= buffer.size
    own = assignment.buffer_allocations.add(index=temp.index + 1, size=buffer.size, color=color)
    own.assigned.add(logical_buffer_id=buffer.id, offset=0, size=buffer.size)
    trace, own_trace = assignment.heap_simulator_traces[0], assignment.heap_simulator_traces.add()
    for event in list(trace.events):
        if event.buffer_id == buffer.id:
            own_trace.events.add().CopyFrom(event)
            trace.events.remove(event)


@pytest.mark.parametrize("color", [1, 2, 7])
def test_both_kinds_count_at_the_moment_when_they_come_to_most(color: int) -> None:
    report = analyze(_capture(color))
    # Beside `gathered` there is `b` (64 + 32): its own trace would let `gathered` live as long as `c` (64 + 40), and
    # tells of its death no more than that it is not before its birth (64 + 16).
    assert report.live_peak_bytes == LASTING + 64 + 32
    assert report.footprint_bytes == LASTING + 16 + 32 + 8 + 64
    assert {buffer.name for buffer in report.buffers if buffer.is_temp} == {"gathered", "b"}
    (highest,) = {each.live_bytes for each in report.timeline.slices(1)}
    assert highest == report.live_peak_bytes
    assert {buffer.name: buffer.offset for buffer in report.temp_buffers}["gathered"] == 16 + 32 + 8
    assert sum(report.categories.values()) == report.footprint_bytes


def test_what_lies_in_the_memory_of_collectives_belongs_to_them_where_nothing_else_is_known() -> None:
    found = {buffer.name: buffer for buffer in analyze(_capture(7)).temp_buffers}
    assert found["gathered"].category is Category.COLLECTIVES
    assert found["b"].category is Category.FORWARD_TEMPS
    other = {buffer.name: buffer for buffer in analyze(_capture(7, opcode="pad")).temp_buffers}["gathered"]
    assert (other.category, other.evidence) == (Category.COLLECTIVES, "in memory reserved for collectives")


def test_the_compilers_peak_of_the_higher_kind_is_still_compared() -> None:
    # It leaves the lower kind out: 64 of `gathered`, not the 40 of `b` and `c`.
    for wrong in (LASTING + 64 + 32, LASTING + 40):
        with pytest.raises(InternalError, match="the live peak"):
            analyze(_capture(7, peak_bytes=wrong))


def test_two_kinds_may_have_their_peaks_at_the_same_moment() -> None:
    """`a` has 64 bytes, more than `b` and `c`, and is live beside the 64 of `gathered`."""
    report = analyze(_capture(7, num_elements=16, peak_bytes=64 + 4 + 64))
    assert report.live_peak_bytes == 64 + 4 + 64 + 64


def test_other_memory_than_the_devices_is_not_counted() -> None:
    report = analyze(replace(_capture(5), compiler=replace(_capture(5).compiler, temp_bytes=16 + 32 + 8)))
    assert (report.live_peak_bytes, report.program.host_bytes) == (LASTING + 32 + 8, 64)


def test_a_peak_at_the_first_event_is_at_its_position() -> None:
    def trace(peak_event: int) -> DeviceTrace:
        liveness: Any = SimpleNamespace(peak_event=peak_event)
        return DeviceTrace(liveness=liveness, positions=(4, 7), moments=(0, 1))

    assert [trace(event).peak_position for event in (-1, 0, 1)] == [-1, 4, 7]


def test_what_dies_after_another_dies_no_earlier() -> None:
    """Two deaths, noted at 3 and 4: the first value is read last at 9, the second at 5."""
    events = [SimpleNamespace(kind=EventKind.ALLOC, buffer_id=0)] * 2
    events += [SimpleNamespace(kind=EventKind.FREE, buffer_id=number) for number in (0, 1)]
    liveness: Any = SimpleNamespace(trace=SimpleNamespace(events=events))
    table: Any = SimpleNamespace(logical_buffers={0: "first", 1: "second"})
    values: Any = SimpleNamespace(group_of={"first": 0, "second": 1}.get)
    order: Any = SimpleNamespace(
        event_positions=lambda trace: [1, 2, 3, 4, 12], last_positions=lambda trace: [12, 12, 12, 12, 12]
    )
    assert _positions(liveness, table, values, order, {0: 9, 1: 5}) == [1, 2, 9, 9, 12]
    order.last_positions = lambda trace: [12, 12, 8, 12, 12]
    assert _positions(liveness, table, values, order, {0: 9, 1: 5}) == [1, 2, 8, 8, 12]
