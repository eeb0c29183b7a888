"""The heap traces of a device's memory on one time axis.

XLA plans each kind of device memory separately. Usually there is only one kind, but the buffers of collectives can have
their own (`xla_gpu_enable_nccl_user_buffers`). Then each kind has a trace, and the device holds the sum of both at each
moment. A trace shows exactly when memory is allocated, but it shows only that a free comes before the next allocation
of the same trace. So with several traces, a value dies at its last read, within the limits of its trace.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import BufferTable, EventKind
from memprof.analysis.hlo.liveness import Liveness
from memprof.analysis.hlo.program_order import ProgramOrder

_NO_READS = frozenset({"tuple", "get-tuple-element", "bitcast"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """One trace with the times of its events.

    Attributes:
        liveness: the replayed trace; its peak is at the moment when all traces together hold most.
        positions: the position of each event in program order, and of the end.
        moments: the index of each event in the merged sequence of all traces' events.
    """

    liveness: Liveness
    positions: tuple[int, ...]
    moments: tuple[int, ...]

    @property
    def peak_position(self) -> int:
        """The position of its peak."""
        event = self.liveness.peak_event
        return -1 if event < 0 else self.positions[event]


def device_traces(
    traces: Sequence[Liveness], table: BufferTable, values: Values, order: ProgramOrder
) -> tuple[DeviceTrace, ...]:
    """Select the traces of the device's memory among all replayed traces."""
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
    """Yield the events of a trace as merge keys: at one position, allocations come before frees."""
    for event, each in enumerate(liveness.trace.events):
        yield positions[event], each.kind is EventKind.FREE, number, event


def _changes(liveness: Liveness) -> list[int]:
    """Return the change of the live bytes at each event."""
    changes = [0] * (len(liveness.trace.events) + 1)
    for span in liveness.spans:
        changes[span.start] += span.size_bytes
        changes[span.end] -= span.size_bytes
    return changes


def _positions(
    liveness: Liveness, table: BufferTable, values: Values, order: ProgramOrder, last_reads: dict[int, int]
) -> list[int]:
    """Return the position of each event and of the end; a value is freed at its last read."""
    first, last = order.event_positions(liveness.trace), order.last_positions(liveness.trace)
    positions = list(first)
    for number, event in enumerate(liveness.trace.events):
        if event.kind is EventKind.FREE:
            group = values.group_of(table.logical_buffers[event.buffer_id])
            read = first[number] if group is None else last_reads.get(group, first[number])
            positions[number] = min(max(read, positions[number - 1]), last[number])
    return positions


def _last_reads(values: Values, order: ProgramOrder) -> dict[int, int]:
    """Return the last position at which each group is read."""
    found: dict[int, int] = {}
    for position, instruction in enumerate(order.instructions):
        if instruction.opcode not in _NO_READS:
            for group in values.groups_read_by(instruction):
                found[group] = position
    return found
