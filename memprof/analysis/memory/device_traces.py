"""The heap traces of a device's memory on one time axis.

XLA places each kind of device memory by itself: nearly always all of it is of one kind, but what collectives work on
can have a kind of its own (`xla_gpu_enable_nccl_user_buffers`). Each has a trace then, and the device holds what both
say at the same moment. A trace tells when memory is taken, but of a death only that it comes before the trace's next
birth. So with several traces a value dies where it is read last, within what its trace allows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import BufferTable, EventKind
from memprof.analysis.hlo.liveness import Liveness
from memprof.analysis.hlo.program_order import ProgramOrder

_READS_NOTHING = frozenset({"tuple", "get-tuple-element", "bitcast"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """One trace, and when its events are.

    Attributes:
        liveness: its peak is what it holds when all traces together hold most.
        positions: of each event in program order, and of the end.
        moments: the same more finely: the number of each event among those of all traces, in their order.
    """

    liveness: Liveness
    positions: tuple[int, ...]
    moments: tuple[int, ...]

    @property
    def peak_position(self) -> int:
        """Where it has come to what it holds at the peak."""
        event = self.liveness.peak_event
        return -1 if event < 0 else self.positions[event]


def device_traces(
    traces: Sequence[Liveness], table: BufferTable, values: Values, order: ProgramOrder
) -> tuple[DeviceTrace, ...]:
    """Of all replayed traces those of the device's memory."""
    on_device = {allocation.index for allocation in table.device_allocations}
    found = [each for each in traces if each.trace.allocation in on_device]
    if len(found) == 1:
        (only,) = found
        moments = tuple(range(len(only.trace.events) + 1))
        return (DeviceTrace(liveness=only, positions=order.event_positions(only.trace), moments=moments),)
    last_reads = _last_reads(values, order) if found else {}
    positions = [_positions(each, table, values, order, last_reads) for each in found]
    changes = [_changes(each) for each in found]
    moments_of = [[0] * len(each) for each in positions]
    past, at_peak = [-1] * len(found), [-1] * len(found)
    live_bytes = peak_bytes = 0
    merged = heapq.merge(*(_events(number, positions[number], each) for number, each in enumerate(found)))
    for moment, (_, _, number, event) in enumerate(merged):
        past[number] = event
        moments_of[number][event] = moment
        live_bytes += changes[number][event]
        if live_bytes > peak_bytes:
            peak_bytes, at_peak = live_bytes, list(past)
    end = sum(map(len, positions))
    return tuple(
        DeviceTrace(
            liveness=replace(each, peak_event=event, peak_bytes=sum(change[: event + 1])),
            positions=tuple(at),
            moments=(*moments[:-1], end),
        )
        for each, event, change, at, moments in zip(found, at_peak, changes, positions, moments_of, strict=True)
    )


def _events(number: int, positions: Sequence[int], liveness: Liveness) -> Iterator[tuple[int, bool, int, int]]:
    """The events of a trace as they are merged: at one position what is born is there before what dies."""
    for event, each in enumerate(liveness.trace.events):
        yield positions[event], each.kind is EventKind.FREE, number, event


def _changes(liveness: Liveness) -> list[int]:
    """By how much each event changes what is live."""
    changes = [0] * (len(liveness.trace.events) + 1)
    for span in liveness.spans:
        changes[span.start] += span.size_bytes
        changes[span.end] -= span.size_bytes
    return changes


def _positions(
    liveness: Liveness, table: BufferTable, values: Values, order: ProgramOrder, last_reads: dict[int, int]
) -> list[int]:
    """The position of each event, and of the end; deaths where the value is read last."""
    first, last = order.event_positions(liveness.trace), order.last_positions(liveness.trace)
    positions = list(first)
    for number, event in enumerate(liveness.trace.events):
        if event.kind is EventKind.FREE:
            group = values.group_of(table.logical_buffers[event.buffer_id])
            read = first[number] if group is None else last_reads.get(group, first[number])
            positions[number] = min(max(read, positions[number - 1]), last[number])
    return positions


def _last_reads(values: Values, order: ProgramOrder) -> dict[int, int]:
    """The last position at which something reads a group."""
    found: dict[int, int] = {}
    for position, instruction in enumerate(order.instructions):
        if instruction.opcode not in _READS_NOTHING:
            for group in values.groups_read_by(instruction):
                found[group] = position
    return found
