"""The allocations of a memory snapshot, in the order in which they were allocated and freed.

A snapshot holds the segments and blocks of one moment, and the history that led to it. The history is a ring buffer.
Allocations from before its beginning are known only if they are freed in it, or from the blocks that still exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memprof.untrusted import Bytes, Count, Text

_LIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a segment. `address` is missing in snapshots of PyTorch before 2.1."""

    size: Bytes
    state: Text
    requested_size: Bytes | None = None
    address: Count | None = None
    frames: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Memory that the allocator received from CUDA."""

    address: Count
    total_size: Bytes
    device: Count = 0
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An entry of the history. `frames`: innermost call first."""

    action: Text
    addr: Count = 0
    size: int = 0
    device_free: int | None = None
    frames: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of `torch.cuda.memory._snapshot()`. `device_traces`: the history of each device."""

    segments: tuple[Segment, ...]
    device_traces: tuple[tuple[Event, ...], ...] = ()


@dataclass(slots=True)
class Allocation:
    """The memory of one tensor.

    Attributes:
        born, died: numbers of the events that allocate and free it; None if it was allocated before the history, or
            not freed in it.
        made_by, freed_by: the stacks of the two events.
    """

    address: int
    size_bytes: int
    born: int | None
    made_by: Any
    died: int | None = None
    freed_by: Any = None


@dataclass(slots=True, kw_only=True)
class History:
    """The allocations of one device.

    Attributes:
        num_events: the length of the history.
        reserved_bytes: peak of the reserved memory.
        out_of_memory_bytes: size of the last failed request; None if no request failed.
    """

    allocations: list[Allocation] = field(default_factory=list)
    num_events: int = 0
    reserved_bytes: int = 0
    out_of_memory_bytes: int | None = None


def devices_of(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the devices that hold memory or have a history, the one with the most memory first."""
    reserved = {number: 0 for number, events in enumerate(snapshot.device_traces) if events}
    for segment in snapshot.segments:
        reserved[segment.device] = reserved.get(segment.device, 0) + segment.total_size
    return tuple(sorted(reserved, key=lambda device: (-reserved[device], device)))


def history_of(snapshot: Snapshot, device: int) -> History:
    """Replay the history of a device."""
    traces = snapshot.device_traces
    events = traces[device] if device < len(traces) else ()
    segments = [segment for segment in snapshot.segments if segment.device == device]
    history = History(num_events=len(events), reserved_bytes=_most_reserved(segments, events))
    live: dict[int, Allocation] = {}
    early: list[Allocation] = []
    freeing: dict[int, Any] = {}
    for number, event in enumerate(events):
        if event.action == "alloc":
            if event.addr in live:  # the history lacks the event that freed it
                live.pop(event.addr).died = number
            live[event.addr] = Allocation(event.addr, max(event.size, 0), number, event.frames)
            history.allocations.append(live[event.addr])
        elif event.action == "free_requested":
            freeing[event.addr] = event.frames
        elif event.action == "free_completed":
            freed = live.pop(event.addr, None)
            if freed is None:
                freed = Allocation(event.addr, max(event.size, 0), None, None)
                early.append(freed)
            freed.died, freed.freed_by = number, freeing.pop(event.addr, event.frames)
        elif event.action == "oom":
            history.out_of_memory_bytes = event.size
    known = {each.address for each in live.values()}
    early += [each for each in _live_blocks(segments) if each.address not in known]
    history.allocations[:0] = early
    return history


def _most_reserved(segments: Sequence[Segment], events: Sequence[Event]) -> int:
    """Return the peak of the reserved memory, by following the history backwards from the snapshot's end."""
    reserved = most = sum(segment.total_size for segment in segments)
    for event in reversed(events):
        reserved -= _RESERVES.get(event.action, 0) * event.size
        most = max(most, reserved)
    return most


def _live_blocks(segments: Sequence[Segment]) -> list[Allocation]:
    found = []
    for segment in segments:
        address = segment.address
        for block in segment.blocks:
            place = address if block.address is None else block.address
            if block.state in _LIVE:
                size = block.size if block.requested_size is None else block.requested_size
                found.append(Allocation(place, size, None, block.frames))
            address = place + block.size
    return found
