"""The report: all facts about one capture, ready for any format.

`analysis.pipeline.analyze` makes it. The records hold whole bytes; rounding happens in `reports`, once, at display.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from memprof.analysis.records.capture import ArgumentLeaf, CompilerTotals, SourceLines, Target, Timings, Toolchain
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.engine import EngineFigures
from memprof.analysis.records.kernel import KernelCalls
from memprof.analysis.records.layout_copy import LayoutCopy
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.measurement import Measurement
from memprof.analysis.records.pool import Pieces, PoolSettings, Verdict
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.roofline import Roofline
from memprof.analysis.records.timeline import Timeline
from memprof.analysis.records.why_live import WhyLive


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNode:
    """One module and everything under it. A node's categories include those of its children.

    Attributes:
        path: `layers_0/mlp`; empty for the root.
        num_params: the number of elements of the parameters in it and under it.
        params: its own parameter leaves (not its children's), as (name, shape, dtype).
        categories: bytes by category; they add up to `size_bytes`.
        forward_flops: FLOPs of the forward pass in it and under it; 0 if scopes do not show modules.
    """

    path: str
    num_params: int
    params: tuple[tuple[str, tuple[int, ...], str], ...]
    categories: Mapping[Category, int]
    children: tuple[ModuleNode, ...]
    forward_flops: int = 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def size_bytes(self) -> int:
        return sum(self.categories.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop of the compiled program: JAX's name of it, and its trip count (None if unknown to the compiler)."""

    op: str
    phase: Phase
    trip_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedOperations:
    """The number of operations of the compiled program in one scope and one phase, according to their names.

    Attributes:
        scope: the scopes around them, without JAX's transformations: `step/Transformer/layers_0/mlp`.
        phase: `none` if the name shows no differentiation.
    """

    scope: str
    phase: Phase
    num_operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """Facts about the compiled program, as evidence that a technique took effect.

    Attributes:
        num_recomputed_operations: the number of operations that `jax.checkpoint` recomputes.
        host_bytes: host memory that the step holds, outside the footprint.
        operations: all named operations by scope and phase, in that order.
        library_calls: the number of calls of each library function (`__cublas$gemm`, `__cudnn$fmhaSoftmax`).
        has_barriers: whether it has optimization barriers.
        backward_end: the position in program order of the last operation that does work of the backward pass; -1
            without a backward pass.
    """

    num_recomputed_operations: int
    loops: tuple[Loop, ...]
    host_bytes: int
    operations: tuple[ScopedOperations, ...] = ()
    library_calls: Mapping[str, int] = field(default_factory=dict)
    has_barriers: bool = False
    backward_end: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """The collectives of one step with the same kind that connect devices along the same mesh axes.

    Attributes:
        kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all`, `ragged-all-to-all`, `collective-permute` or
            `collective-broadcast`.
        axes: the axes along which the devices of a group vary, in the mesh's order; empty if the groups follow no axes.
        group_size: the number of devices in a group if it is a part of those along these axes; None if it is all.
        count: the number of runs in a step.
        size_bytes: the payload of all runs on one device (see `mesh/collectives.py`).
        param_bytes: the part of the payload that is made from parameters alone.
        at_least: whether the figures are lower bounds, because a loop of unknown trip count counts once.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    size_bytes: int
    param_bytes: int
    at_least: bool
    group_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionerNote:
    """A warning of XLA's partitioner from dividing the program among devices.

    Attributes:
        text: the event in one sentence, without the full stop.
        op: JAX's name of the operation, or else XLA's; empty if the warning names none.
        shape: the shape of that operation on one device, as XLA writes it: `f32[8,16,4]`; empty if not named.
        module, source: those of the operation, if the compiled program still contains it; as in `LiveBuffer`.
    """

    text: str
    op: str
    shape: str
    module: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """One operation of the compiled program, over all traced steps.

    Attributes:
        name: the HLO instruction.
        op: JAX's name of it; empty if it has none.
        contains_others: whether it is a loop, a branch or a call, so that its time includes other operations of the
            list.
        category: the category of the largest piece of memory of its result; None if the result has no own memory.
        held_bytes: all memory of its result.
    """

    name: str
    op: str
    seconds: float
    num_calls: int
    contains_others: bool
    phase: Phase
    module: str
    category: Category | None
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The part of the live peak that is due to XLA's order of the operations.

    Attributes:
        bound_bytes: a lower bound on the peak of any order of the same operations (see `scheduling/any_order.py`).
        other_bytes: the peak of another order, if one with a lower peak was found; else the live peak itself.
        waiting: buffers that are live at the peak because operations wait that could have run before.
        early: buffers that are live at the peak and could have been made after it.
        is_fenced: whether an optimization barrier lies between a waiting buffer and the operations that it waits for.
    """

    bound_bytes: int = 0
    other_bytes: int = 0
    waiting: tuple[LiveBuffer, ...] = ()
    early: tuple[LiveBuffer, ...] = ()
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorFigures:
    """PyTorch's caching allocator at the peak, with the names of `torch.cuda`.

    Attributes:
        requested_bytes: the total size of the live tensors.
        allocated_bytes: the total size of their blocks, which are rounded up (`max_memory_allocated`); None for a
            memory snapshot, which does not contain it.
        reserved_bytes: the total size of all segments, including cached memory (`max_memory_reserved`).
    """

    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The memory of one step. `categories` adds up to `footprint_bytes`, byte for byte.

    Attributes:
        framework: `jax` or `torch`; `onnx` for a model from the user.
        engine: the engine that runs the program: `xla`, `tensorrt`; empty if the step is not compiled.
        engine_figures: the memory of an inference engine; None for XLA's programs.
        allocator: the allocator's figures of a PyTorch step, whose footprint is the reserved memory; else None.
        footprint_bytes: all memory of the step: arguments, outputs that alias no argument, temp block, constants.
        live_peak_bytes: the maximum of the live bytes; footprint minus live peak is fragmentation.
        forward_flops: FLOPs of the forward pass by module, according to scopes; empty if scopes do not show modules.
        categories: bytes of every category, including empty ones, in the order of `Category`.
        by_source, by_dtype, by_phase: the footprint by another key, each adding up to `footprint_bytes`. The empty
            source, dtype `""` and phase `none` hold bytes without a key (fragmentation).
        modules: the root of the module tree; its bytes add up to `footprint_bytes`.
        buffers: the buffers that are live at the peak, largest first; with fragmentation they add up to
            `footprint_bytes`.
        temp_buffers: all buffers of the temp block at any time, in the order of their allocation.
        collectives: the communication between the devices of a mesh, largest bytes first; empty for one device.
        partitioner_notes: the warnings of XLA's partitioner.
        arguments: all leaves of the step's arguments.
        parameter_bytes: the bytes on one device of each argument that the program takes, by its parameter number.
        doubts: sentences about arguments whose role had to be guessed.
        verdict: whether the step fits JAX's pool, by the plan without pressure.
        pieces, pool: the inputs of the verdict: the allocations, and the settings of JAX's allocator.
        pressed_pieces: the allocations of this report's plan, if XLA recomputes values in it and `pieces` are those of
            `without_limit`.
        refusal: the compiler's own message if it rejected the program because it does not fit the device.
        kernels: the Pallas kernels of a program for a TPU, largest VMEM request first.
        layout_copies: the operations that only change the layout of an array, largest bytes written per step first.
        pressure: the values that XLA recomputes by itself; None if there are none.
        without_limit: the report of the same program, compiled without a memory limit, if there is pressure; None if it
            was not compiled.
        memory_spaces: the bytes of the step in each memory of the device and in its host's: `hbm`, which is the
            footprint, `vmem`, `smem`, ..., `host`.
        analysis_seconds: the time of decoding and attribution.
        measured: the measurements of a run of the step; None if it did not run.
        op_costs: the operations of its trace, longest time first; empty without a trace.
        roofline: the least time of a step; None if the device's peaks are unknown, or too many kernels have no price.
        schedule: the part of the live peak that is due to the order of the operations; None if it was not requested, or
            if there is no program.
        reasons: why the first of `buffers` are live at the peak, in their order; empty if `schedule` is None.
        source_lines: the text of source lines, by the file of a buffer's `source` and line number; empty if omitted.
    """

    label: str
    workload: str
    techniques: tuple[str, ...]
    config: Mapping[str, str | int | float | bool | None]
    target: Target
    toolchain: Toolchain
    compiler: CompilerTotals
    timings: Timings
    footprint_bytes: int
    live_peak_bytes: int
    num_params: int
    flops: int
    recomputed_flops: int
    categories: Mapping[Category, int]
    by_source: Mapping[str, int]
    by_dtype: Mapping[str, int]
    by_phase: Mapping[Phase, int]
    modules: ModuleNode
    buffers: tuple[LiveBuffer, ...]
    temp_buffers: tuple[LiveBuffer, ...]
    timeline: Timeline
    arguments: tuple[ArgumentLeaf, ...]
    program: ProgramFacts
    analysis_seconds: float
    verdict: Verdict
    pieces: Pieces
    pool: PoolSettings
    memory_spaces: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""
    kernels: tuple[KernelCalls, ...] = ()
    layout_copies: tuple[LayoutCopy, ...] = ()
    pressed_pieces: Pieces | None = None
    pressure: Pressure | None = None
    without_limit: Report | None = None
    parameter_bytes: Mapping[int, int] = field(default_factory=dict)
    collectives: tuple[CollectiveTraffic, ...] = ()
    partitioner_notes: tuple[PartitionerNote, ...] = ()
    doubts: tuple[str, ...] = ()
    measured: Measurement | None = None
    op_costs: tuple[OpCost, ...] = ()
    forward_flops: Mapping[str, int] = field(default_factory=dict)
    roofline: Roofline | None = None
    schedule: Schedule | None = None
    reasons: tuple[WhyLive, ...] = field(default=(), repr=False)
    source_lines: SourceLines = field(default_factory=dict)
    framework: str = "jax"
    engine: str = "xla"
    engine_figures: EngineFigures | None = None
    allocator: AllocatorFigures | None = None

    def sums(self) -> Report:
        """Return the report without its lists of buffers, operations and arguments, for one row of a large table."""
        return replace(
            self,
            buffers=(),
            temp_buffers=(),
            timeline=replace(self.timeline, changes=(), temp_changes=(), phases=(), modules=()),
            program=replace(self.program, operations=()),
            arguments=(),
            parameter_bytes={},
            layout_copies=(),
            op_costs=(),
            schedule=None,
            reasons=(),
            source_lines={},
            without_limit=None if self.without_limit is None else self.without_limit.sums(),
        )

    @property
    def unpressed(self) -> Report:
        """The report of the plan without pressure, which verdicts and advice use, or else this one."""
        return self.without_limit or self

    @property
    def unused_arguments(self) -> tuple[ArgumentLeaf, ...]:
        """Leaves that jit dropped; the caller holds them, and the footprint does not include them."""
        return tuple(leaf for leaf in self.arguments if leaf.parameter_number is None)

    def device_bytes(self, leaf: ArgumentLeaf) -> int:
        """Return the bytes of an argument on one device, which are all of them if it is not sharded."""
        return self.parameter_bytes.get(-1 if leaf.parameter_number is None else leaf.parameter_number, leaf.size_bytes)

    @property
    def padding_bytes(self) -> int:
        """The padding in the live peak: memory without elements of arrays."""
        return sum(buffer.padding_bytes for buffer in self.buffers)

    @property
    def layout_copy_bytes(self) -> int:
        """The bytes that layout copies write in a step, in any memory."""
        return sum(copy.step_bytes for copy in self.layout_copies)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits JAX's pool without a change; None if the device's memory is unknown."""
        return self.verdict.fits
