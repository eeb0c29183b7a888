"""What memory holds, when, and why: the rules' claims laid over the live ranges.

What lies outside the temp block has an indefinite lifetime: it is held for the whole step, and stands for its whole
allocation. In the temp block each live range of the heap trace is a buffer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.analysis.buffer_table import Allocation, BufferTable
from memprof.analysis.categories import Category, Phase
from memprof.analysis.liveness import Liveness
from memprof.analysis.patterns import Patterns
from memprof.analysis.program import Program
from memprof.analysis.program_order import ProgramOrder
from memprof.analysis.report import LiveBuffer
from memprof.analysis.rules import attribute
from memprof.analysis.sources import SourcePlace, Sources
from memprof.analysis.timeline import LiveChange, Timeline
from memprof.analysis.values import Value, Values

# When values of the forward pass are used that were kept for it.
_BACKWARD = frozenset({Phase.RECOMPUTE, Phase.BACKWARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that one program holds: buffers with an indefinite lifetime, temp buffers, and the two totals."""

    indefinite: tuple[LiveBuffer, ...]
    temps: tuple[LiveBuffer, ...]
    footprint_bytes: int
    live_peak_bytes: int
    timeline: Timeline

    @property
    def at_peak(self) -> tuple[LiveBuffer, ...]:
        """What is live at the peak, largest first: its bytes add up to `live_peak_bytes`."""
        live = (*self.indefinite, *(buffer for buffer in self.temps if buffer.at_peak))
        return tuple(sorted(live, key=lambda buffer: -buffer.size_bytes))


class Attribution:
    """Makes live buffers of values: asks the rules, and looks up what else the report says of a value."""

    def __init__(self, program: Program, sources: Sources, patterns: Patterns) -> None:
        self._program = program
        self._sources = sources
        self._patterns = patterns

    def buffer(
        self, value: Value, *, size_bytes: int, offset: int | None, start: int, end: int, at_peak: bool
    ) -> LiveBuffer:
        """A value with its place in memory and time."""
        claim = attribute(value)
        argument, patterns = value.argument, self._patterns
        lines = SourcePlace("", "") if argument else self._sources.lines(self._program.instructions[value.operation])
        return LiveBuffer(
            size_bytes=size_bytes,
            shape=value.shape,
            dtype=value.dtype,
            category=claim.category,
            phase=Phase.ARGUMENT if argument else Phase.CONSTANT if value.is_constant else value.phase,
            module=value.module,
            name=value.name,
            shape_index=value.element,
            op=argument.path if argument else value.op_name,
            source=lines.user,
            library=lines.library,
            rule=claim.rule,
            evidence=claim.evidence,
            start=start,
            end=end,
            offset=offset,
            at_peak=at_peak,
            is_of_attention=value.group in patterns.of_attention,
            is_of_softmax=value.group in patterns.of_softmax,
            is_stacked=value.group in patterns.stacked,
            family=patterns.families.get(value.group, 0),
        )


def account_memory(
    table: BufferTable, traces: Sequence[Liveness], values: Values, order: ProgramOrder, attribution: Attribution
) -> Memory:
    """Attribute all device memory.

    Args:
        traces: the replayed heap traces; those of other memory are left out.
    """
    allocations = {allocation.index: allocation for allocation in table.device_allocations}
    traces = [each for each in traces if each.trace.allocation in allocations]
    traced = {each.trace.allocation for each in traces}
    indefinite = tuple(
        attribution.buffer(
            values.of_allocation(allocation),
            size_bytes=allocation.size_bytes,
            offset=None,
            start=0,
            end=max(order.length - 1, 0),
            at_peak=True,
        )
        for allocation in allocations.values()
        if allocation.index not in traced and not _holds_tables_only(allocation, table, values)
    )
    temps: list[LiveBuffer] = []
    for liveness in traces:
        temps += _temp_buffers(liveness, table, values, order, attribution)
    events = [(each.start, each.end) for liveness in traces for each in liveness.live_ranges]
    return Memory(
        indefinite=indefinite,
        temps=tuple(temps),
        footprint_bytes=table.footprint_bytes,
        live_peak_bytes=sum(buffer.size_bytes for buffer in indefinite) + sum(each.peak_bytes for each in traces),
        timeline=_timeline(indefinite, temps, events, order, values, peak_position=_peak_position(traces, order)),
    )


def _holds_tables_only(allocation: Allocation, table: BufferTable, values: Values) -> bool:
    """Whether a temp block without a trace holds nothing but tables of pointers to the elements of tuples.

    XLA places these tables without simulating them, inside a traced temp block too, and its own peak leaves them out
    (jaxlib 0.10.2 to 0.12). So does ours: their few bytes are part of the footprint and lie in its fragmentation.
    """
    return allocation.is_temp and all(
        values.of_buffer(table.logical_buffers[buffer_id]).is_tuple_table for buffer_id in allocation.logical_buffers
    )


def _temp_buffers(
    liveness: Liveness, table: BufferTable, values: Values, order: ProgramOrder, attribution: Attribution
) -> Iterator[LiveBuffer]:
    positions, last = order.event_positions(liveness.trace), order.last_positions(liveness.trace)
    num_backward = order.num_before(_BACKWARD, values.phase_of)
    for live_range in liveness.live_ranges:
        stored = table.logical_buffers[live_range.buffer_id]
        start = positions[live_range.start]
        dies_in_forward = num_backward[start] == num_backward[last[live_range.end] + 1]
        yield attribution.buffer(
            values.of_buffer(stored, dies_in_forward=dies_in_forward),
            size_bytes=live_range.size_bytes,
            offset=stored.offset,
            start=start,
            end=positions[live_range.end],
            at_peak=live_range.at_peak,
        )


def _peak_position(traces: Sequence[Liveness], order: ProgramOrder) -> int:
    if not traces:
        return 0
    highest = max(traces, key=lambda liveness: liveness.peak_bytes)
    return order.event_positions(highest.trace)[highest.peak_event]


def _timeline(
    indefinite: Sequence[LiveBuffer],
    temps: Sequence[LiveBuffer],
    events: Sequence[tuple[int, int]],
    order: ProgramOrder,
    values: Values,
    *,
    peak_position: int,
) -> Timeline:
    """Args: events: of its trace, between which each temp buffer is live: the order within a position."""
    base: Counter[Category] = Counter()
    for buffer in indefinite:
        base[buffer.category] += buffer.size_bytes
    moments: list[tuple[int, int, int, int]] = []
    for number, (buffer, (first, last)) in enumerate(zip(temps, events, strict=True)):
        moments.append((buffer.start, first, buffer.size_bytes, number))
        moments.append((buffer.end, last, -buffer.size_bytes, number))
    # Within one event a death comes before a birth: the memory changes hands.
    moments.sort()
    places: list[list[int]] = [[] for _ in temps]
    for place, (_, _, _, number) in enumerate(moments):
        places[number].append(place)
    return Timeline(
        num_positions=order.length,
        base=dict(base),
        changes=tuple(LiveChange(position, temps[number].category, delta) for position, _, delta, number in moments),
        temp_changes=tuple((born, died) for born, died in places),
        phases=order.phase_spans(values.phase_of),
        peak_position=peak_position,
        modules=order.module_spans(values.module_of),
    )
