"""Replay XLA's heap-simulator trace to find the live ranges of the temp block's buffers.

The trace lists ALLOC, FREE and SHARE_WITH events. Several values can share one piece of memory, which is allocated with
the first value and freed with the last. So the replay counts references for each **canonical** buffer (the one named by
the ALLOC):

    ALLOC b            set b's count to 1; its bytes become live
    SHARE_WITH b of c  increment c's count; if it was 0, its bytes become live again
    FREE b             decrement the count of b's canonical; at 0 its bytes die

The maximum of this replay equals the compiler's peak, byte for byte. A replay that ignores SHARE_WITH is 6 to 10% too
low.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from memprof.analysis.hlo.buffer_table import BufferTable, Event, EventKind, HeapTrace
from memprof.errors import InternalError


class Lifetime(Struct, frozen=True, gc=False, kw_only=True):
    """An interval in which one value holds memory.

    Attributes:
        buffer_id: the logical buffer of the value.
        canonical_id: the logical buffer whose memory it uses (itself, unless it shares).
        start, end: event numbers in the trace; `end` is exclusive.
    """

    buffer_id: int
    canonical_id: int
    start: int
    end: int


class MemorySpan(Struct, frozen=True, gc=False, kw_only=True):
    """An interval in which the memory of `canonical_id` is allocated, from event `start` up to event `end`."""

    canonical_id: int
    size_bytes: int
    start: int
    end: int


class LiveRange(Struct, frozen=True, gc=False, kw_only=True):
    """An interval in which a piece of memory belongs to one value.

    If several values share it, it belongs to the latest: from the event that allocated it up to event `end`.
    """

    buffer_id: int
    size_bytes: int
    start: int
    end: int
    at_peak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The result of one replay. `peak_event` is the first event after which the live bytes are at their maximum."""

    trace: HeapTrace
    lifetimes: tuple[Lifetime, ...]
    spans: tuple[MemorySpan, ...]
    peak_bytes: int
    peak_event: int

    @property
    def live_ranges(self) -> tuple[LiveRange, ...]:
        """The spans, divided among the values that share each, ordered by the start of the span."""
        by_canonical: dict[int, list[Lifetime]] = defaultdict(list)
        for lifetime in sorted(self.lifetimes, key=lambda lifetime: lifetime.start):
            by_canonical[lifetime.canonical_id].append(lifetime)
        ranges = []
        for span in sorted(self.spans, key=lambda span: span.start):
            inside = [each for each in by_canonical[span.canonical_id] if span.start <= each.start < span.end]
            ends = [*(lifetime.start for lifetime in inside[1:]), span.end]
            for lifetime, end in zip(inside, ends, strict=True):
                ranges.append(
                    LiveRange(
                        buffer_id=lifetime.buffer_id,
                        size_bytes=span.size_bytes,
                        start=lifetime.start,
                        end=end,
                        at_peak=lifetime.start <= self.peak_event < end,
                    )
                )
        return tuple(ranges)


def replay(trace: HeapTrace, table: BufferTable) -> Liveness:
    """Replay one trace. See the module's docstring for the rule.

    Raises:
        InternalError: the trace frees a dead buffer, allocates a live one, or shares with one that it never allocated.
    """
    canonical_of: dict[int, int] = {}
    count: dict[int, int] = {}
    value_start: dict[int, int] = {}
    span_start: dict[int, int] = {}
    lifetimes: list[Lifetime] = []
    spans: list[MemorySpan] = []
    live_bytes = peak_bytes = peak_event = 0

    for index, event in enumerate(trace.events):
        canonical = _canonical(event, canonical_of)
        if event.kind is EventKind.FREE:
            if count.get(canonical, 0) == 0 or event.buffer_id not in value_start:
                raise InternalError(f"XLA's heap trace frees buffer {event.buffer_id}, which is not live")
            start = value_start.pop(event.buffer_id)
            lifetimes.append(Lifetime(buffer_id=event.buffer_id, canonical_id=canonical, start=start, end=index))
            count[canonical] -= 1
            if count[canonical] == 0:
                spans.append(_span(canonical, span_start.pop(canonical), index, table))
                live_bytes -= spans[-1].size_bytes
        else:
            if event.buffer_id in value_start:
                raise InternalError(f"XLA's heap trace allocates buffer {event.buffer_id}, which is live")
            canonical_of[event.buffer_id] = canonical
            value_start[event.buffer_id] = index
            if count.get(canonical, 0) == 0:
                span_start[canonical] = index
                live_bytes += table.logical_buffers[canonical].size_bytes
            count[canonical] = count.get(canonical, 0) + 1
            if live_bytes > peak_bytes:
                peak_bytes, peak_event = live_bytes, index

    end = len(trace.events)
    for buffer_id, start in value_start.items():  # a buffer that the trace never frees lives to the end
        lifetimes.append(Lifetime(buffer_id=buffer_id, canonical_id=canonical_of[buffer_id], start=start, end=end))
    spans.extend(_span(canonical, start, end, table) for canonical, start in span_start.items())
    return Liveness(
        trace=trace,
        lifetimes=tuple(lifetimes),
        spans=tuple(spans),
        peak_bytes=peak_bytes,
        peak_event=peak_event,
    )


def _canonical(event: Event, canonical_of: Mapping[int, int]) -> int:
    if event.kind is EventKind.ALLOC:
        return event.buffer_id
    named = event.canonical_id if event.kind is EventKind.SHARE_WITH else event.buffer_id
    if named not in canonical_of:
        raise InternalError(f"XLA's heap trace refers to buffer {named} before it allocates it")
    return canonical_of[named]


def _span(canonical: int, start: int, end: int, table: BufferTable) -> MemorySpan:
    size_bytes = table.logical_buffers[canonical].size_bytes
    return MemorySpan(canonical_id=canonical, size_bytes=size_bytes, start=start, end=end)
