"""Memory accounting: combine the rules' claims with the live ranges.

A value outside the temp block has an indefinite lifetime: it is live for the whole step and represents its whole
allocation. In the temp block, each live range of the heap trace is a separate buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.analysis.attribution.patterns import Patterns
from memprof.analysis.attribution.rules import attribute
from memprof.analysis.attribution.sources import SourcePlace, Sources
from memprof.analysis.attribution.values import Value, Values
from memprof.analysis.hlo.buffer_table import Allocation, BufferTable
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_order import ProgramOrder
from memprof.analysis.memory.device_traces import DeviceTrace
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.timeline import LiveChange, Timeline

# The phases that read values kept from the forward pass.
_BACKWARD = frozenset({Phase.RECOMPUTE, Phase.BACKWARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one program: buffers with an indefinite lifetime, temp buffers, and the two totals."""

    indefinite: tuple[LiveBuffer, ...]
    temps: tuple[LiveBuffer, ...]
    footprint_bytes: int
    live_peak_bytes: int
    timeline: Timeline

    @property
    def at_peak(self) -> tuple[LiveBuffer, ...]:
        """The buffers that are live at the peak, largest first; their bytes add up to `live_peak_bytes`."""
        live = (*self.indefinite, *(buffer for buffer in self.temps if buffer.at_peak))
        return tuple(sorted(live, key=lambda buffer: -buffer.size_bytes))


class Attribution:
    """Makes live buffers from values: applies the rules, and adds the source lines and patterns that reports show."""

    def __init__(self, program: Program, sources: Sources, patterns: Patterns) -> None:
        self._program = program
        self._sources = sources
        self._patterns = patterns

    def buffer(
        self, value: Value, *, size_bytes: int, offset: int | None, start: int, end: int, at_peak: bool
    ) -> LiveBuffer:
        """Return the live buffer of a value with its place in memory and time."""
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
            stack=lines.stack,
            rule=claim.rule,
            evidence=claim.evidence,
            start=start,
            end=end,
            offset=offset,
            at_peak=at_peak,
            padding_bytes=value.padding_bytes,
            padded=value.padded,
            is_of_attention=value.group in patterns.of_attention,
            is_of_softmax=value.group in patterns.of_softmax,
            is_stacked=value.group in patterns.stacked,
            family=patterns.families.get(value.group, 0),
        )


def account_memory(
    table: BufferTable, traces: Sequence[DeviceTrace], values: Values, order: ProgramOrder, attribution: Attribution
) -> Memory:
    """Attribute all device memory.

    Args:
        traces: all traces of the device.
    """
    traced = {each.liveness.trace.allocation for each in traces}
    indefinite = tuple(
        attribution.buffer(
            values.of_allocation(allocation),
            size_bytes=allocation.size_bytes,
            offset=None,
            start=0,
            end=max(order.length - 1, 0),
            at_peak=True,
        )
        for allocation in table.device_allocations
        if allocation.index not in traced and not _holds_tables_only(allocation, table, values)
    )
    temps: list[LiveBuffer] = []
    block_start = 0  # several temp blocks lie one after another
    for trace in traces:
        temps += _temp_buffers(trace, block_start, table, values, order, attribution)
        block_start += table.allocations[trace.liveness.trace.allocation].size_bytes
    moments = [
        (trace.moments[each.start], trace.moments[each.end]) for trace in traces for each in trace.liveness.live_ranges
    ]
    return Memory(
        indefinite=indefinite,
        temps=tuple(temps),
        footprint_bytes=table.footprint_bytes,
        live_peak_bytes=sum(buffer.size_bytes for buffer in indefinite)
        + sum(each.liveness.peak_bytes for each in traces),
        timeline=_timeline(
            indefinite,
            temps,
            moments,
            order,
            values,
            peak_position=max((each.peak_position for each in traces), default=0),
        ),
    )


def _holds_tables_only(allocation: Allocation, table: BufferTable, values: Values) -> bool:
    """Whether a temp block without a trace holds only tuples' pointer tables.

    XLA places these tables without simulating them, even inside a traced temp block, and its own peak excludes
    them. So does ours: their few bytes belong to the footprint and count as fragmentation.
    """
    return allocation.is_temp and all(
        values.of_buffer(table.logical_buffers[buffer_id]).is_tuple_table for buffer_id in allocation.logical_buffers
    )


def _temp_buffers(
    trace: DeviceTrace,
    block_start: int,
    table: BufferTable,
    values: Values,
    order: ProgramOrder,
    attribution: Attribution,
) -> Iterator[LiveBuffer]:
    positions, last = trace.positions, order.last_positions(trace.liveness.trace)
    num_backward = order.num_before(_BACKWARD, values.phase_of)
    for live_range in trace.liveness.live_ranges:
        stored = table.logical_buffers[live_range.buffer_id]
        start = positions[live_range.start]
        dies_in_forward = num_backward[start] == num_backward[last[live_range.end] + 1]
        yield attribution.buffer(
            values.of_buffer(stored, dies_in_forward=dies_in_forward),
            size_bytes=live_range.size_bytes,
            offset=block_start + stored.offset,
            start=start,
            end=positions[live_range.end],
            at_peak=live_range.at_peak,
        )


def _timeline(
    indefinite: Sequence[LiveBuffer],
    temps: Sequence[LiveBuffer],
    moments: Sequence[tuple[int, int]],
    order: ProgramOrder,
    values: Values,
    *,
    peak_position: int,
) -> Timeline:
    """Args: moments: the first and last moment of each temp buffer, which give the order within a position."""
    base: Counter[Category] = Counter()
    for buffer in indefinite:
        base[buffer.category] += buffer.size_bytes
    changes: list[tuple[int, int, int, int]] = []
    for number, (buffer, (first, last)) in enumerate(zip(temps, moments, strict=True)):
        changes.append((buffer.start, first, buffer.size_bytes, number))
        changes.append((buffer.end, last, -buffer.size_bytes, number))
    # Within one event, a death comes before a birth, because the memory is reused.
    changes.sort()
    places: list[list[int]] = [[] for _ in temps]
    for place, (_, _, _, number) in enumerate(changes):
        places[number].append(place)
    return Timeline(
        num_positions=order.length,
        base=dict(base),
        changes=tuple(LiveChange(position, temps[number].category, delta) for position, _, delta, number in changes),
        temp_changes=tuple((born, died) for born, died in places),
        phases=order.phase_spans(values.phase_of),
        peak_position=peak_position,
        modules=order.module_spans(values.module_of),
    )
