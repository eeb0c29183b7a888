"""The trace in a capture: the values in memory, in the order of their allocations and frees.

It replaces a compiled program if there is none: in a capture of a traced PyTorch step, or of a memory snapshot. The
sources determine the maker, the users and the category of a value. `analysis` determines the memory that an allocator
reserves for it, unless a real allocator has recorded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan
from memprof.untrusted import Bytes, Count, Dimensions, Text, Words

Operations = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedValue:
    """One storage on the device.

    Attributes:
        shape, dtype: those of its original tensor; the dtype is XLA's name (`bf16`, `f32`, `s64`), empty if unknown.
        phase: the phase that makes it; `argument` if it exists before the first step.
        module: the path of its module (`layers/0/mlp`); empty at top level.
        name: the path of a parameter or state (`layers.0.mlp.weight`), else the operation with a number (`aten.mm.7`).
        op: the operation that makes it (`aten.mm`), or the path again.
        source, library: as in `LiveBuffer`.
        stack: the number of its Python stack in `Trace.stacks`.
        rule, evidence: the reason for its category.
    """

    size_bytes: Bytes
    shape: Dimensions
    dtype: Text
    category: Category
    phase: Phase
    module: Words
    name: Words
    op: Words
    source: Words
    library: Words
    rule: Text
    evidence: Text
    stack: Count = 0


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """The allocation or the free of a value.

    Attributes:
        position: the number of the running operation.
        value: the value's number in `Trace.values`.
    """

    position: Count
    value: Count
    is_birth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The figures of a real allocator.

    Attributes:
        reserved_bytes: the maximum of its reserved memory.
        addresses: the address of each value.
    """

    reserved_bytes: Bytes
    addresses: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One or more training steps in sequence.

    Attributes:
        framework: `torch`.
        num_positions: the number of operations in all steps.
        step_starts: the position at which each step begins.
        stacks: the Python stacks of the values, outermost call first; the first is empty.
        events: the events in order; values that exist before the first step are allocated at its beginning.
        phases, modules: spans over the positions, in order.
        forward_flops: FLOPs of the forward pass of the last step, by module.
        calls: the number of calls of each operation (`aten.mm`) in the last step.
        recomputed: the number of operations of the last step that checkpoints recompute, by module.
        moved_to_host_bytes: the size of the tensors that the last step copies to host memory.
        host_bytes: the size of the tensors in host memory that the step keeps.
        recording: the figures of a real allocator; None if memprof simulates the allocator.
    """

    framework: Text
    num_positions: Count
    step_starts: tuple[Count, ...]
    values: tuple[TracedValue, ...]
    events: tuple[TraceEvent, ...]
    phases: tuple[PhaseSpan, ...] = ()
    modules: tuple[ModuleSpan, ...] = ()
    stacks: tuple[tuple[StackFrame, ...], ...] = ((),)
    forward_flops: Mapping[Words, Operations] = field(default_factory=dict)
    calls: Mapping[Words, Count] = field(default_factory=dict)
    recomputed: Mapping[Words, Count] = field(default_factory=dict)
    moved_to_host_bytes: Bytes = 0
    host_bytes: Bytes = 0
    recording: Recording | None = None


def fault_of(trace: Trace) -> str:
    """Describe the first contradiction in a trace from a file; empty if it has none."""
    last = max(trace.num_positions - 1, 0)
    starts = trace.step_starts
    if not starts or starts[0] or list(starts) != sorted(starts) or starts[-1] > trace.num_positions:
        return "its steps are out of order"
    if any(value.stack >= len(trace.stacks) for value in trace.values):
        return "a value has a stack that does not exist"
    if trace.recording is not None and len(trace.recording.addresses) != len(trace.values):
        return "it does not have one address for each value"
    spans: tuple[PhaseSpan | ModuleSpan, ...] = (*trace.phases, *trace.modules)
    if any(not 0 <= span.start <= span.end <= last for span in spans):
        return "a span is outside its operations"
    position = live_bytes = most_bytes = 0
    alive: set[int] = set()
    born: set[int] = set()
    for event in trace.events:
        if event.value >= len(trace.values) or not position <= event.position <= max(last, position):
            return "its events are out of order"
        if event.is_birth == (event.value in born) or event.is_birth == (event.value in alive):
            return "a value is allocated or freed twice"
        position = event.position
        born.add(event.value)
        (alive.add if event.is_birth else alive.discard)(event.value)
        live_bytes += trace.values[event.value].size_bytes * (1 if event.is_birth else -1)
        most_bytes = max(most_bytes, live_bytes)
    if trace.recording is not None and trace.recording.reserved_bytes < most_bytes:
        return "less memory is reserved than is allocated"
    return ""
