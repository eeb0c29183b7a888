"""The report: all facts about one capture, ready for any format.

`analysis.pipeline.analyze` makes it. The records hold whole bytes; rounding happens in `reports`, once, at display.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        num_params: elements of the parameters in it and under it.
        params: its own parameter leaves (not its children's), as (name, shape, dtype).
        categories: bytes; they add up to `size_bytes`.
        forward_flops: operations of the forward pass in it and under it; 0 where scopes do not tell modules.
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
    """A loop of the compiled program: JAX's name of it, and how often it runs (None: the compiler does not know)."""

    op: str
    phase: Phase
    trip_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedOperations:
    """How many operations of the compiled program lie in one scope, in one phase as their names show it.

    Attributes:
        scope: the scopes around them, without JAX's transformations: `step/Transformer/layers_0/mlp`.
        phase: `none` where the name shows no differentiation.
    """

    scope: str
    phase: Phase
    num_operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """What the compiled program does, as evidence that a technique took effect.

    Attributes:
        num_recomputed_operations: operations that `jax.checkpoint` evaluates again.
        host_bytes: bytes in host memory that the step holds, beside the footprint.
        operations: all named operations by scope and phase, in that order.
        library_calls: how many calls of each library function there are (`__cublas$gemm`, `__cudnn$fmhaSoftmax`).
        has_barriers: optimization barriers stand in it.
        backward_end: the position in program order of the last operation that does work of the backward pass; -1 where
            there is none.
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
    """The collectives of one step that are of one kind and connect devices along the same axes of the mesh.

    Attributes:
        kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all`, `ragged-all-to-all`, `collective-permute` or
            `collective-broadcast`.
        axes: along which the devices of a group lie, in the mesh's order; empty: they lie along none.
        group_size: how many of the devices along these axes a group connects; None: all of them.
        count: how many run in a step.
        size_bytes: their payload on one device, of all that run (see `mesh/collectives.py`).
        param_bytes: the part of it that is made of parameters alone.
        at_least: some are in a loop of which the compiler does not know how often it runs: they are counted once.
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
    """What XLA's partitioner warned of when it divided the program among devices.

    Attributes:
        text: what happens, in one sentence without its end.
        op: JAX's name of the operation that it is about, or else XLA's; empty where the warning names none.
        shape: of that operation on one device, as XLA writes it: `f32[8,16,4]`; empty likewise.
        module, source: of the operation, where the compiled program still has it; as in `LiveBuffer`.
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
        name: of the HLO instruction.
        op: JAX's name of it; empty where there is none.
        contains_others: it is a loop, a branch or a call: its time is that of operations which are in the list too.
        category: of the largest piece of memory that its result takes; None where it takes none of its own.
        held_bytes: all memory that its result takes.
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
    """How much of the live peak is due to the order that XLA runs the operations in.

    Attributes:
        bound_bytes: what any order of the same operations holds at its peak, at least (see `scheduling/any_order.py`).
        other_bytes: the peak in another order, where one was found in which less is live; else the live peak itself.
        waiting: what is live at the peak because operations wait that could have run before.
        early: what is live at the peak, and could have been made after it.
        is_fenced: an optimization barrier stands between some of what waits and what it waits for.
    """

    bound_bytes: int = 0
    other_bytes: int = 0
    waiting: tuple[LiveBuffer, ...] = ()
    early: tuple[LiveBuffer, ...] = ()
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorFigures:
    """PyTorch's caching allocator at the peak, each figure under the name that `torch.cuda` gives it.

    Attributes:
        requested_bytes: the sizes of the live tensors.
        allocated_bytes: the sizes of their blocks, which are rounded up (`max_memory_allocated`); None of a
            memory snapshot, which does not tell it.
        reserved_bytes: of all segments, with what is cached (`max_memory_reserved`).
    """

    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where the bytes of one step are. `categories` adds up to `footprint_bytes`, byte for byte.

    Attributes:
        framework: `jax` or `torch`; `onnx` of a model that the user gave.
        engine: that runs the program: `xla`, `tensorrt`; empty where nothing is compiled.
        engine_figures: what an inference engine holds; None of XLA's programs.
        allocator: of a step of PyTorch, whose footprint is what the allocator reserves; else None.
        footprint_bytes: what the allocator must hold: arguments, outputs that alias no argument, temp block, constants.
        live_peak_bytes: the most bytes that are live at once; footprint minus live peak is fragmentation.
        forward_flops: operations of the forward pass by the module whose scope they lie in; empty where scopes do not
            tell modules.
        categories: every category, largest footprint or not, in the order of `Category`.
        by_source, by_dtype, by_phase: the footprint by another key, each adding up to `footprint_bytes`. The empty
            source, dtype `""` and phase `none` hold what has none (fragmentation).
        modules: the root of the module tree; its bytes add up to `footprint_bytes`.
        buffers: what is live at the peak, largest first; with fragmentation they add up to `footprint_bytes`.
        temp_buffers: all that ever lies in the temp block, in the order in which it takes its memory.
        collectives: what the devices of a mesh send each other, those of most bytes first; empty for one device.
        partitioner_notes: what XLA's partitioner warned of.
        arguments: all leaves of the step's arguments.
        parameter_bytes: what one device holds of each argument that the program takes, by its parameter number.
        doubts: sentences about arguments whose role had to be guessed.
        verdict: whether the step fits the pool that JAX has, by the plan without pressure.
        pieces, pool: what the verdict is made of: the allocations, and the settings of JAX's allocator.
        pressed_pieces: the allocations of this report's plan, if XLA recomputes values in it and `pieces` are those of
            `without_limit`.
        refusal: the compiler's own sentence where it refused the program, which does not fit the device.
        kernels: the Pallas kernels of a program for a TPU, those that ask for most VMEM first.
        layout_copies: the operations that only change the layout of an array, those that write most in a step first.
        pressure: what XLA recomputes on its own; None if it recomputes nothing.
        without_limit: the report of the same program, compiled without a limit of memory, if there is pressure; None if
            it was not compiled so.
        memory_spaces: the bytes that the step holds in each memory of the device and in its host's: `hbm`, which is the
            footprint, `vmem`, `smem`, ..., `host`.
        analysis_seconds: how long decoding and attribution took.
        measured: what was measured when the step ran; None where it did not.
        op_costs: the operations of its trace, those that took most time first; empty where there was none.
        roofline: the least time of a step; None where the device's peaks, or too many kernels, have no price.
        schedule: how much of the live peak is due to the order of the operations alone; None if that was not asked for,
            or there is no program.
        reasons: why the first of `buffers` are live at the peak, in their order; empty where `schedule` is None.
        source_lines: the text of source lines, by the file of a buffer's `source` and number; empty where left out.
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

    @property
    def unpressed(self) -> Report:
        """The report of the plan without pressure, which verdicts and advice use; else this one."""
        return self.without_limit or self

    @property
    def unused_arguments(self) -> tuple[ArgumentLeaf, ...]:
        """Leaves that jit dropped; they are in the caller's hands, not in the footprint."""
        return tuple(leaf for leaf in self.arguments if leaf.parameter_number is None)

    def device_bytes(self, leaf: ArgumentLeaf) -> int:
        """What one device holds of an argument: of one that is not divided, all of it."""
        return self.parameter_bytes.get(-1 if leaf.parameter_number is None else leaf.parameter_number, leaf.size_bytes)

    @property
    def padding_bytes(self) -> int:
        """The part of the live peak that holds no elements of arrays."""
        return sum(buffer.padding_bytes for buffer in self.buffers)

    @property
    def layout_copy_bytes(self) -> int:
        """What operations that only change a layout write in a step, in any memory."""
        return sum(copy.step_bytes for copy in self.layout_copies)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits the pool that JAX has, without a change; None if the device's memory is not known."""
        return self.verdict.fits
