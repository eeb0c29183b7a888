"""What memory holds, when, and why: the claims laid over the lifetimes.

A **holding** is one stretch of time in which one value has a piece of memory. Where several values share a piece, it
belongs to the one that took it last. What lies outside the temp block is held for the whole step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from memprof.analysis.buffer_table import Allocation, BufferTable
from memprof.analysis.categories import Phase
from memprof.analysis.liveness import Lifetime, Liveness, MemorySpan, replay
from memprof.analysis.program_order import ProgramOrder
from memprof.analysis.rules import Claim, attribute
from memprof.analysis.values import Value, Values

# When values of the forward pass are used that were kept for it.
_BACKWARD = frozenset({Phase.RECOMPUTE, Phase.BACKWARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """See the module's docstring.

    Attributes:
        offset: in the temp block; None outside it.
        start, end: first and last position in program order.
        events: the same in the trace: held from one event up to another; None for what is held throughout.
        at_peak: whether it is held at the peak of its trace.
    """

    value: Value
    claim: Claim
    size_bytes: int
    offset: int | None
    start: int
    end: int
    events: tuple[int, int] | None
    at_peak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """All holdings of one program: those of the whole step and those of the temp block, with the two totals."""

    lasting: tuple[Holding, ...]
    passing: tuple[Holding, ...]
    footprint_bytes: int
    live_peak_bytes: int
    peak_position: int

    @property
    def at_peak(self) -> tuple[Holding, ...]:
        """What is held at the peak: its bytes add up to `live_peak_bytes`."""
        return (*self.lasting, *(holding for holding in self.passing if holding.at_peak))


def hold(table: BufferTable, values: Values, order: ProgramOrder) -> Holdings:
    """Replay the traces of device memory and attribute every buffer.

    Raises:
        InternalError: see `liveness.replay`.
    """
    allocations = {allocation.index: allocation for allocation in table.device_allocations}
    traces = [replay(trace, table) for trace in table.traces if trace.allocation in allocations]
    traced = {liveness.trace.allocation for liveness in traces}
    num_backward = order.num_before(_BACKWARD, values.phase_of)
    lasting = []
    for allocation in allocations.values():
        if allocation.index in traced or _holds_tables_only(allocation, table, values):
            continue
        value = values.of_allocation(allocation)
        lasting.append(
            Holding(
                value=value,
                claim=attribute(value),
                size_bytes=allocation.size_bytes,
                offset=None,
                start=0,
                end=max(order.length - 1, 0),
                events=None,
                at_peak=True,
            )
        )
    return Holdings(
        lasting=tuple(lasting),
        passing=tuple(
            holding for liveness in traces for holding in _passing(liveness, table, values, order, num_backward)
        ),
        footprint_bytes=sum(allocation.size_bytes for allocation in allocations.values()),
        live_peak_bytes=sum(holding.size_bytes for holding in lasting)
        + sum(liveness.peak_bytes for liveness in traces),
        peak_position=_peak_position(traces, order),
    )


def _holds_tables_only(allocation: Allocation, table: BufferTable, values: Values) -> bool:
    """Whether a temp block without a trace holds nothing but tables of pointers to the elements of tuples.

    XLA places these tables without simulating them, inside a traced temp block too, and its own peak leaves them out
    (jaxlib 0.10.2 to 0.12). So does ours: their few bytes are part of the footprint and lie in its fragmentation.
    """
    return allocation.is_temp and all(
        values.of_buffer(table.logical_buffers[buffer_id]).is_tuple_table for buffer_id in allocation.logical_buffers
    )


def _peak_position(traces: list[Liveness], order: ProgramOrder) -> int:
    if not traces:
        return 0
    highest = max(traces, key=lambda liveness: liveness.peak_bytes)
    return order.event_positions(highest.trace)[highest.peak_event]


def _passing(
    liveness: Liveness, table: BufferTable, values: Values, order: ProgramOrder, num_backward: tuple[int, ...]
) -> tuple[Holding, ...]:
    """Args: num_backward: instructions of the backward pass before each position of the schedule."""
    positions, last = order.event_positions(liveness.trace), order.last_positions(liveness.trace)
    by_canonical: dict[int, list[Lifetime]] = defaultdict(list)
    for lifetime in liveness.lifetimes:
        by_canonical[lifetime.canonical_id].append(lifetime)
    for lifetimes in by_canonical.values():
        lifetimes.sort(key=lambda lifetime: lifetime.start)
    holdings = []
    for span in sorted(liveness.spans, key=lambda span: span.start):
        for lifetime, end in _takes(span, by_canonical[span.canonical_id]):
            buffer = table.logical_buffers[lifetime.buffer_id]
            value = values.of_buffer(buffer)
            if num_backward[positions[lifetime.start]] == num_backward[last[end] + 1]:
                value = replace(value, dies_in_forward=True)
            holdings.append(
                Holding(
                    value=value,
                    claim=attribute(value),
                    size_bytes=span.size_bytes,
                    offset=buffer.offset,
                    start=positions[lifetime.start],
                    end=positions[end],
                    events=(lifetime.start, end),
                    at_peak=lifetime.start <= liveness.peak_event < end,
                )
            )
    return tuple(holdings)


def _takes(span: MemorySpan, lifetimes: list[Lifetime]) -> list[tuple[Lifetime, int]]:
    """The lifetimes within a span, each with the event up to which it has the memory to itself."""
    inside = [lifetime for lifetime in lifetimes if span.start <= lifetime.start < span.end]
    ends = [*(lifetime.start for lifetime in inside[1:]), span.end]
    return list(zip(inside, ends, strict=True))
