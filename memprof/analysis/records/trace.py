"""A traced step: the values that hold memory, in the order in which they come and go, without a compiler.

It is what `sources` hand over where no buffer assignment exists. Who makes a value, who uses it and what it is for is
decided there; where it lies, and what an allocator reserves for it, is decided in `analysis`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memprof.analysis.records.capture import ArgumentLeaf, Target, Toolchain
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedValue:
    """One storage on the device.

    Attributes:
        shape, dtype: of the tensor that it was made for; dtype in XLA's words (`bf16`, `f32`, `s64`).
        phase: in which it is made; `argument` if it exists before the first step.
        module: path of the module that it belongs to (`layers/0/mlp`), empty at top level.
        name: path of a parameter or state (`layers.0.mlp.weight`), or else the operation with its number (`aten.mm.7`).
        op: the operation that makes it (`aten.mm`), or the path again.
        source, library, stack: as in `LiveBuffer`.
        rule, evidence: why it has its category.
    """

    size_bytes: int
    shape: tuple[int, ...]
    dtype: str
    category: Category
    phase: Phase
    module: str
    name: str
    op: str
    source: str
    library: str
    rule: str
    evidence: str
    stack: tuple[StackFrame, ...] = field(default=(), hash=False)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A value comes alive or dies.

    Attributes:
        position: the number of the operation that is at work.
        value: its number in `Trace.values`.
    """

    position: int
    value: int
    is_birth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Some training steps, one after the other.

    Attributes:
        framework: `torch`.
        num_positions: number of operations, of all steps.
        step_starts: the position at which each step begins.
        events: in order; what exists before the first step comes alive at its beginning.
        phases, modules: spans over the positions, in order.
        arguments: parameters, optimizer state and whatever else is kept between steps, and the batch.
        flops, recomputed_flops: of the matrix products and convolutions of the last step.
        forward_flops: of its forward pass, by module.
        num_recomputed_operations: operations of the last step that checkpoints evaluate again.
        host_bytes: tensors in host memory that the step keeps.
        doubts: sentences about whatever is not known exactly.
        trace_seconds: how long tracing took.
    """

    label: str
    workload: str
    techniques: tuple[str, ...]
    config: Mapping[str, str | int | float | bool | None]
    target: Target
    toolchain: Toolchain
    framework: str
    num_positions: int
    step_starts: tuple[int, ...]
    values: tuple[TracedValue, ...]
    events: tuple[TraceEvent, ...]
    phases: tuple[PhaseSpan, ...]
    modules: tuple[ModuleSpan, ...]
    arguments: tuple[ArgumentLeaf, ...]
    flops: int = 0
    recomputed_flops: int = 0
    forward_flops: Mapping[str, int] = field(default_factory=dict)
    num_recomputed_operations: int = 0
    host_bytes: int = 0
    doubts: tuple[str, ...] = ()
    trace_seconds: float = 0.0

    @property
    def num_params(self) -> int:
        """The number of parameters, frozen ones too (elements, not bytes)."""
        return sum(leaf.num_elements for leaf in self.arguments if leaf.role.value == Category.PARAMS.value)
