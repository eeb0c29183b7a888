"""Decoding the buffer assignment."""

from __future__ import annotations

from typing import Any

import pytest
from hlo import Step, program_of
from hlo_nodes import array, f32, tuple_of
from msgspec.structs import replace

from memprof.analysis.hlo.buffer_table import (
    Allocation,
    BufferTable,
    Event,
    EventKind,
    HeapTrace,
    LogicalBuffer,
    decode_buffer_table,
)
from memprof.analysis.records.categories import Role
from memprof.errors import InternalError


def _decode(proto: Any) -> BufferTable:
    return decode_buffer_table(proto, program_of(proto))


def _step() -> Step:
    """x (instruction 0) -> call (1), with two arrays in its result -> out (3)."""
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    call = step.op("call", "custom-call", tuple_of(f32(4), array("u8", 7)), [x])
    step.result(step.op("out", "negate", f32(4), [step.element(call, 0)]))
    return step


def test_only_the_main_memory_is_the_devices_and_not_what_a_kernel_holds_for_itself() -> None:
    (allocation, *_) = _decode(_step().proto()).allocations
    spaces = ("hbm", "cmem", "host", "vmem", "smem", "space 9")
    assert [replace(allocation, space=space).is_on_device for space in spaces] == [True, *[False] * 5]
    assert not replace(allocation, is_thread_local=True).is_on_device


def test_rows_say_what_lies_where() -> None:
    def allocation(index: int, size_bytes: int, *buffers: int, **flags: Any) -> Allocation:
        plain = {"is_thread_local": False, "is_constant": False, "is_live_out": False, "is_tuple": False}
        row = {**plain, "color": 0, "space": "hbm", "parameter_number": None, **flags}
        return Allocation(index=index, size_bytes=size_bytes, logical_buffers=buffers, **row)

    table = _decode(_step().proto())
    assert table == BufferTable(
        logical_buffers={
            1: LogicalBuffer(id=1, size_bytes=16, instruction=0, shape_index=(), allocation=0, offset=0),
            2: LogicalBuffer(id=2, size_bytes=16, instruction=1, shape_index=(0,), allocation=2, offset=0),
            3: LogicalBuffer(id=3, size_bytes=7, instruction=1, shape_index=(1,), allocation=2, offset=16),
            4: LogicalBuffer(id=4, size_bytes=16, instruction=3, shape_index=(), allocation=1, offset=0),
        },
        allocations=[
            allocation(0, 16, 1, parameter_number=0),
            allocation(1, 16, 4, is_live_out=True),
            allocation(2, 23, 2, 3),
        ],
        traces=(
            HeapTrace(
                allocation=2,
                events=(
                    Event(EventKind.ALLOC, 2, 0, "call"),
                    Event(EventKind.ALLOC, 3, 0, "call"),
                    Event(EventKind.FREE, 2, 0, "call"),
                    Event(EventKind.FREE, 3, 0, "call"),
                ),
            ),
        ),
    )


def test_a_value_without_memory_is_left_out() -> None:
    proto = _step().proto()
    proto.buffer_assignment.logical_buffers.add(id=99, size=0).defined_at.instruction_id = 1
    assert 99 not in _decode(proto).logical_buffers


def test_thread_local_memory_and_other_memory_spaces_are_not_the_devices() -> None:
    proto = _step().proto()
    proto.buffer_assignment.buffer_allocations.add(index=3, size=4, is_thread_local=True)
    proto.buffer_assignment.buffer_allocations.add(index=4, size=4, color=5)
    table = _decode(proto)
    assert len(table.allocations) == 5
    assert [allocation.index for allocation in table.device_allocations] == [0, 1, 2]


def test_an_empty_trace_is_left_out() -> None:
    proto = _step().proto()
    proto.buffer_assignment.heap_simulator_traces.add()
    assert len(_decode(proto).traces) == 1


@pytest.mark.parametrize("place", [0, 1])
def test_a_trace_of_an_unknown_buffer_is_an_error(place: int) -> None:
    proto = _step().proto()
    proto.buffer_assignment.heap_simulator_traces[0].events[place].buffer_id = 99
    with pytest.raises(InternalError, match="buffer 99, which is in no allocation"):
        _decode(proto)


def test_a_trace_that_spans_allocations_is_an_error() -> None:
    proto = _step().proto()
    proto.buffer_assignment.heap_simulator_traces[0].events[1].buffer_id = 4
    with pytest.raises(InternalError, match="several allocations"):
        _decode(proto)


def test_an_unknown_kind_of_event_is_an_error() -> None:
    proto = _step().proto()
    proto.buffer_assignment.heap_simulator_traces[0].events[0].kind = 9
    with pytest.raises(InternalError, match="kind 9"):
        _decode(proto)


def test_allocations_are_found_by_their_index_in_whatever_order_they_are_written() -> None:
    proto = _step().proto()
    expected = _decode(proto)
    rows = list(proto.buffer_assignment.buffer_allocations)
    del proto.buffer_assignment.buffer_allocations[:]
    proto.buffer_assignment.buffer_allocations.extend(reversed(rows))
    assert _decode(proto) == expected


def test_a_missing_allocation_is_an_error() -> None:
    proto = _step().proto()
    proto.buffer_assignment.buffer_allocations[1].index = 7
    with pytest.raises(InternalError, match="not numbered from 0"):
        _decode(proto)
