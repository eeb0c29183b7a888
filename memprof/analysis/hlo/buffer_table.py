"""XLA's buffer assignment as plain rows: the place of each value, and when memory is allocated and freed.

XLA's words: a **logical buffer** is the memory of one value; an **allocation** is a block that the runtime takes as a
whole (one per argument, per output, per constant, and one **temp block** for everything else); a **heap-simulator
trace** is the order in which logical buffers inside one allocation are allocated and freed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from msgspec import Struct

from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_checks import check_assignment
from memprof.analysis.records.device_family import ANY, HBM, DeviceFamily
from memprof.errors import InternalError
from memprof.untrusted import clean, quote


class EventKind(IntEnum):
    """The kinds of heap-simulator events, with the numbers of `HeapSimulatorTrace.Event.Kind`."""

    ALLOC = 0
    FREE = 1
    SHARE_WITH = 2


_EVENT_KINDS = {kind.value: kind for kind in EventKind}


class LogicalBuffer(Struct, frozen=True, gc=False):
    """The memory of one value: defined by `instruction` at `shape_index`, placed at `offset` of `allocation`."""

    id: int
    size_bytes: int
    instruction: int
    shape_index: tuple[int, ...]
    allocation: int
    offset: int


class Allocation(Struct, frozen=True, kw_only=True):
    """One block of memory.

    `color` is XLA's number of its memory space, `space` the device family's name for it.
    `parameter_number` is None unless it is an argument.
    `is_for_collectives`: it is memory for communication between devices.
    `is_tuple`: it holds the pointers of a result tuple, not data. `logical_buffers` are the ids placed in it.
    """

    index: int
    size_bytes: int
    color: int
    space: str
    is_thread_local: bool
    is_constant: bool
    is_live_out: bool
    is_tuple: bool
    parameter_number: int | None
    logical_buffers: tuple[int, ...]
    is_for_collectives: bool = False

    @property
    def is_temp(self) -> bool:
        """Whether it is neither an argument nor a result nor a constant."""
        return self.parameter_number is None and not self.is_live_out and not self.is_constant

    @property
    def is_on_device(self) -> bool:
        """Whether it takes device memory.

        Thread-local allocations live in registers or on the stack of one kernel.
        """
        return not self.is_thread_local and self.space == HBM


class Event(Struct, frozen=True, gc=False):
    """One event of a heap-simulator trace. `canonical_id` is the buffer whose memory a SHARE_WITH uses."""

    kind: EventKind
    buffer_id: int
    canonical_id: int
    instruction_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapTrace:
    """The events of one allocation, in order."""

    allocation: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferTable:
    """See the module's docstring."""

    logical_buffers: Mapping[int, LogicalBuffer]
    allocations: Sequence[Allocation]  # by index
    traces: tuple[HeapTrace, ...]

    @property
    def device_allocations(self) -> tuple[Allocation, ...]:
        """The allocations that take device memory; XLA's totals count these."""
        return tuple(allocation for allocation in self.allocations if allocation.is_on_device)

    @property
    def footprint_bytes(self) -> int:
        """The sum of all allocations of device memory."""
        return sum(allocation.size_bytes for allocation in self.device_allocations)

    @property
    def space_bytes(self) -> dict[str, int]:
        """The bytes of all allocations by memory space, the device's main memory first."""
        sums = Counter({HBM: 0})
        for allocation in self.allocations:
            if not allocation.is_thread_local and allocation.size_bytes:
                sums[allocation.space] += allocation.size_bytes
        return dict(sums)


def decode_buffer_table(proto: Any, program: Program, family: DeviceFamily = ANY) -> BufferTable:
    """Decode `proto.buffer_assignment`.

    Args:
        family: of the target device.

    Raises:
        InternalError: allocations are missing, or a trace refers to buffers of several allocations.
    """
    assignment = proto.buffer_assignment
    messages = assignment.buffer_allocations[:]
    buffers = [
        (message.id, message.size, (place := message.defined_at).instruction_id, tuple(place.shape_index[:]))
        for message in assignment.logical_buffers
    ]
    places = [[(each.logical_buffer_id, each.offset, each.size) for each in message.assigned] for message in messages]
    check_assignment(messages, places, buffers, program)
    placed = {
        number: (message.index, offset)
        for message, assigned in zip(messages, places, strict=True)
        for number, offset, _ in assigned
    }
    logical_buffers = {}
    for number, size_bytes, instruction_id, shape_index in buffers:
        if number not in placed:
            continue  # a value without memory, such as a token
        allocation, offset = placed[number]
        logical_buffers[number] = LogicalBuffer(
            number, size_bytes, program.index_of_id[instruction_id], shape_index, allocation, offset
        )
    allocations = sorted(
        (
            _allocation(message, tuple([number for number, *_ in assigned if number in logical_buffers]), family)
            for message, assigned in zip(messages, places, strict=True)
        ),
        key=lambda allocation: allocation.index,
    )
    if any(allocation.index != number for number, allocation in enumerate(allocations)):
        raise InternalError("XLA's allocations are not numbered from 0 on; the capture's buffer assignment is damaged")
    names = frozenset(instruction.name for instruction in program.instructions)
    return BufferTable(
        logical_buffers=logical_buffers,
        allocations=allocations,
        traces=tuple(
            _trace(message.events, logical_buffers, names)
            for message in assignment.heap_simulator_traces
            if message.events
        ),
    )


def _allocation(message: Any, logical_buffers: tuple[int, ...], family: DeviceFamily) -> Allocation:
    return Allocation(
        index=message.index,
        size_bytes=message.size,
        color=message.color,
        space=family.space_of(message.color),
        is_thread_local=message.is_thread_local,
        is_constant=message.is_constant,
        is_live_out=message.maybe_live_out,
        is_tuple=message.is_tuple,
        parameter_number=message.parameter_number if message.is_entry_computation_parameter else None,
        logical_buffers=logical_buffers,
        is_for_collectives=message.color in family.collective_spaces,
    )


def _trace(messages: Any, logical_buffers: Mapping[int, LogicalBuffer], names: frozenset[str]) -> HeapTrace:
    """Decode one trace. Args: names: the names of the program's instructions."""
    # The proto's field for the allocation is wrong in jaxlib 0.10.2 to 0.11.2; the buffers have the right one.
    allocations = set()
    events = []
    for message in messages:
        kind, buffer_id = _EVENT_KINDS.get(message.kind), message.buffer_id
        if kind is None:
            raise InternalError(f"XLA's heap trace has an event of kind {message.kind}, which memprof does not support")
        if buffer_id not in logical_buffers:
            raise InternalError(f"XLA's heap trace names buffer {buffer_id}, which is in no allocation")
        name = clean(message.instruction_name)
        if name not in names:
            raise InternalError(
                f"XLA's heap trace names the instruction {quote(name)}, which the program does not have"
            )
        allocations.add(logical_buffers[buffer_id].allocation)
        events.append(Event(kind, buffer_id, message.share_with_canonical_id, name))
    if len(allocations) > 1:
        raise InternalError(f"XLA's heap trace is about several allocations at once ({sorted(allocations)})")
    return HeapTrace(allocation=allocations.pop(), events=tuple(events))
