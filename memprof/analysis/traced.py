"""From a captured trace to a report: the same records as from XLA's buffer assignment, with an allocator in its place.

    trace ──▶ allocator: reserved, and the place of each value ──┐
          └─▶ live bytes over time ──▶ the step with the peak ─┴▶ live buffers and timeline ──▶ breakdowns ──▶ report

Buffers have the sizes of the tensors, so parameters add up exactly. The bytes that the allocator adds (rounding, cached
blocks, unused parts of segments) are fragmentation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeVar

from memprof.analysis.memory.breakdown import common_fields
from memprof.analysis.memory.caching_allocator import AllocatorSettings, CachingAllocator
from memprof.analysis.memory.card import judge_reserved
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.pool import Pieces, PoolSettings
from memprof.analysis.records.report import AllocatorFigures, ProgramFacts, Report, ScopedOperations, TracedFacts
from memprof.analysis.records.timeline import LiveChange, ModuleSpan, PhaseSpan, Timeline
from memprof.analysis.records.trace import Trace, TraceEvent

_Span = TypeVar("_Span", PhaseSpan, ModuleSpan)


class DottedPaths:
    """The modules of parameters with PyTorch's paths: `layers.0.mlp.weight`."""

    def of_argument(self, path: str) -> str:
        """Return the module that owns a parameter: `layers/0/mlp`."""
        return path.rpartition(".")[0].replace(".", "/")

    def leaf_name(self, path: str) -> str:
        """Return the name of a parameter within its module: `weight`."""
        return path.rpartition(".")[2]


def analyze_trace(capture: Capture, *, settings: AllocatorSettings | None = None) -> Report:
    """Account for every byte of the traced step's device memory.

    Args:
        capture: of a trace.
        settings: of the caching allocator; None: its defaults.

    Raises:
        OutOfMemoryError: the step does not fit the limit in the settings.
    """
    started = time.perf_counter()
    trace = capture.trace
    assert trace is not None
    allocated = _allocate(trace, settings)
    span = _highest_step(trace)
    placed = _place(trace, span, allocated.addresses)
    buffers = tuple(sorted((each for each in placed.all if each.at_peak), key=lambda each: -each.size_bytes))
    live_peak = sum(each.size_bytes for each in buffers)
    assert live_peak == span.peak_bytes
    footprint = allocated.reserved_bytes
    return Report(
        **common_fields(capture, buffers, DottedPaths(), footprint, trace.forward_flops),
        framework=trace.framework,
        engine="",
        temp_buffers=placed.temps,
        timeline=_timeline(trace, span, placed),
        program=_facts(trace),
        doubts=capture.doubts,
        verdict=judge_reserved(footprint, capture.target),
        pieces=Pieces(held=(footprint,)),
        pool=PoolSettings(),
        allocator=AllocatorFigures(
            requested_bytes=live_peak,
            allocated_bytes=allocated.allocated_bytes,
            reserved_bytes=footprint,
        ),
        analysis_seconds=time.perf_counter() - started,
    )


def _facts(trace: Trace) -> ProgramFacts:
    first = trace.step_starts[-1]
    live: set[int] = set()
    forward: Counter[str] = Counter()
    kept_gradient_bytes = 0
    for is_last, events in groupby(trace.events, key=lambda event: event.position >= first):
        if is_last:
            kept_gradient_bytes = sum(trace.values[number].size_bytes for number in live if _is_gradient(trace, number))
        for event in events:
            value = trace.values[event.value]
            (live.add if event.is_birth else live.discard)(event.value)
            if is_last and event.is_birth and value.phase is Phase.FORWARD:
                forward[value.dtype] += value.size_bytes
    passes = [each.phase for each in trace.phases if each.end >= first and each.phase in _PASSES]
    return ProgramFacts(
        num_recomputed_operations=sum(trace.recomputed.values()),
        loops=(),
        host_bytes=trace.host_bytes,
        operations=tuple(
            ScopedOperations(scope=module, phase=Phase.RECOMPUTE, num_operations=number)
            for module, number in trace.recomputed.items()
        ),
        library_calls=trace.calls,
        traced=TracedFacts(
            forward_bytes=dict(forward),
            num_backward_passes=sum(
                before is Phase.FORWARD and after is Phase.BACKWARD for before, after in pairwise(passes)
            ),
            kept_gradient_bytes=kept_gradient_bytes,
            moved_to_host_bytes=trace.moved_to_host_bytes,
        ),
    )


# A recomputation is a part of a backward pass.
_PASSES = (Phase.FORWARD, Phase.BACKWARD)


def _is_gradient(trace: Trace, number: int) -> bool:
    return trace.values[number].category is Category.GRADIENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allocated:
    """Addresses of values, and the peaks. `allocated_bytes` is None if the sizes of blocks were not recorded."""

    addresses: Sequence[int]
    allocated_bytes: int | None
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One of the traced steps.

    Attributes:
        first, stop: the positions that it spans; `stop` is exclusive.
        events: its events; `before` are those of earlier steps.
        peak_bytes: its live peak, after the first `peak_events` of its events.
        peak_position: the position of the peak.
    """

    first: int
    stop: int
    before: tuple[TraceEvent, ...]
    events: tuple[TraceEvent, ...]
    peak_bytes: int
    peak_events: int
    peak_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """The live buffers of a step: those held throughout it, and the others ordered by birth."""

    held: tuple[LiveBuffer, ...]
    temps: tuple[LiveBuffer, ...]
    temp_values: tuple[int, ...]

    @property
    def all(self) -> tuple[LiveBuffer, ...]:
        return (*self.held, *self.temps)


def _allocate(trace: Trace, settings: AllocatorSettings | None) -> _Allocated:
    """Return the recorded addresses, or else those that the allocator's model gives to all events."""
    if trace.recording is not None:
        recorded = trace.recording
        return _Allocated(addresses=recorded.addresses, allocated_bytes=None, reserved_bytes=recorded.reserved_bytes)
    allocator = CachingAllocator(settings)
    addresses = [0] * len(trace.values)
    for event in trace.events:
        if event.is_birth:
            addresses[event.value] = allocator.malloc(event.value, trace.values[event.value].size_bytes)
        else:
            allocator.free(event.value)
    return _Allocated(
        addresses=addresses,
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
    )


def _highest_step(trace: Trace) -> _Step:
    """Return the step with the highest live peak; ties go to the last."""
    stops = (*trace.step_starts[1:], trace.num_positions)
    return max(
        (_step(trace, first, stop) for first, stop in zip(trace.step_starts, stops, strict=True)),
        key=lambda step: (step.peak_bytes, step.first),
    )


def _step(trace: Trace, first: int, stop: int) -> _Step:
    # Values from before the first step are born at its first position; values that die between two steps die at the
    # last position of the earlier one.
    before = tuple(event for event in trace.events if event.position < first)
    events = tuple(event for event in trace.events if first <= event.position < max(stop, first + 1))
    live = sum(_delta(trace, event) for event in before)
    peak, num_events, position = live, 0, first
    for number, event in enumerate(events, start=1):
        live += _delta(trace, event)
        if live > peak:
            peak, num_events, position = live, number, event.position
    return _Step(
        first=first,
        stop=stop,
        before=before,
        events=events,
        peak_bytes=peak,
        peak_events=num_events,
        peak_position=position,
    )


def _delta(trace: Trace, event: TraceEvent) -> int:
    size = trace.values[event.value].size_bytes
    return size if event.is_birth else -size


def _place(trace: Trace, step: _Step, addresses: Sequence[int]) -> _Placed:
    """Return the live buffers of a step."""
    alive = {event.value: step.first for event in step.before if event.is_birth}
    for event in step.before:
        if not event.is_birth:
            del alive[event.value]
    last = max(step.stop - 1, step.first)
    ends: dict[int, int] = {}
    at_peak = set(alive)
    births = dict(alive)
    for number, event in enumerate(step.events, start=1):
        if event.is_birth:
            births[event.value] = event.position
        else:
            ends[event.value] = event.position
        if number <= step.peak_events:
            (at_peak.add if event.is_birth else at_peak.discard)(event.value)
    in_order = sorted(births, key=lambda value: births[value])
    # A value that is kept between steps is held: it exists at the beginning, or has a role, and never dies.
    held = [value for value in in_order if value not in ends and (value in alive or births[value] == step.first)]
    is_held = set(held)
    temps = [value for value in in_order if value not in is_held]

    def buffer(value: int, offset: int | None) -> LiveBuffer:
        return _live_buffer(
            trace,
            value,
            start=births[value] - step.first,
            end=ends.get(value, last) - step.first,
            offset=offset,
            at_peak=value in at_peak,
        )

    return _Placed(
        held=tuple(buffer(value, None) for value in held),
        temps=tuple(buffer(value, addresses[value]) for value in temps),
        temp_values=tuple(temps),
    )


def _live_buffer(trace: Trace, value: int, *, start: int, end: int, offset: int | None, at_peak: bool) -> LiveBuffer:
    traced = trace.values[value]
    return LiveBuffer(
        size_bytes=traced.size_bytes,
        shape=traced.shape,
        dtype=traced.dtype,
        category=traced.category,
        phase=traced.phase,
        module=traced.module,
        name=traced.name,
        op=traced.op,
        source=traced.source,
        library=traced.library,
        stack=trace.stacks[traced.stack],
        rule=traced.rule,
        evidence=traced.evidence,
        start=start,
        end=end,
        offset=offset,
        at_peak=at_peak,
    )


def _timeline(trace: Trace, step: _Step, placed: _Placed) -> Timeline:
    base: Counter[Category] = Counter()
    for buffer in placed.held:
        base[buffer.category] += buffer.size_bytes
    numbers = {value: number for number, value in enumerate(placed.temp_values)}
    existing = [event.value for event in step.before if event.is_birth]
    died = {event.value for event in step.before if not event.is_birth}
    births = [TraceEvent(step.first, value, True) for value in existing if value not in died]
    freed = {event.value for event in step.events if not event.is_birth}
    events = [event for event in (*births, *step.events) if event.value in numbers]
    events += [
        TraceEvent(max(step.stop - 1, step.first), value, False) for value in placed.temp_values if value not in freed
    ]
    moments: list[list[int]] = [[] for _ in placed.temp_values]
    for moment, event in enumerate(events):
        moments[numbers[event.value]].append(moment)
    return Timeline(
        num_positions=step.stop - step.first,
        base=dict(base),
        changes=tuple(
            LiveChange(event.position - step.first, trace.values[event.value].category, _delta(trace, event))
            for event in events
        ),
        phases=_cut(trace.phases, step),
        peak_position=step.peak_position - step.first,
        modules=_cut(trace.modules, step),
        temp_changes=tuple((born, died) for born, died in moments),
    )


def _cut(spans: Sequence[_Span], step: _Step) -> tuple[_Span, ...]:
    """Return the parts of spans that lie in a step, counted from its first position."""
    return tuple(
        replace(span, start=max(span.start, step.first) - step.first, end=min(span.end, step.stop - 1) - step.first)
        for span in spans
        if span.start < step.stop and span.end >= step.first
    )
