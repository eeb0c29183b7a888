"""What `--format json` prints of a report, as typed records; `comparison.py` and `answers.py` have the others.

    record = report_json(report)
    msgspec.convert(json.loads(render_object(record)), ReportJson) == record

Other programs rely on the fields: within a schema version they may be added, never renamed or removed, and their order
is fixed, so that two reports can be compared as text. `docs/schema/` says what is promised; the schemas of the site are
made from these types. What the analysis has under the same name is taken over by `filled`.
"""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.measurement import DriverMemory, MeasuredDevice, Measurement, OutOfMemory, PoolMemory
from memprof.analysis.records.report import ModuleNode, Report
from memprof.reports.json.mesh import MeshJson, mesh_json
from memprof.reports.json.types import (
    CategorySizes,
    MaybePressure,
    Number,
    PhaseSums,
    Shape,
    Size,
    Sums,
    VerdictJson,
    about,
    filled,
)
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.advise import advise

_Key = TypeVar("_Key", bound=str)


class TargetJson(Struct, frozen=True, kw_only=True):
    """The device that the step was compiled for."""

    name: Annotated[str, about("Name in the catalogue of targets, or `local:...`.")]
    memory_bytes: Annotated[Size | None, about("Device memory; null where there is no fixed amount.")]
    description: Annotated[str, about("The vendor's name of the device.")]
    platform: Annotated[str, about("XLA's platform: `cuda` or `cpu`.")]
    compute_capability: Annotated[str | None, about("For example `9.0`; null where there is none.")]
    reason: Annotated[str, about("Why this target was taken.")]


class ToolchainJson(Struct, frozen=True, kw_only=True):
    """The versions that made the capture; null: not installed."""

    memprof: str
    jax: Annotated[str, about("Empty where PyTorch made the step; so is jaxlib.")]
    jaxlib: str
    python: str
    cuda_plugin: str | None
    flax: str | None
    optax: str | None
    xla_flags: Annotated[str, about("XLA flags that were set; empty if none.")]
    jax_settings: Annotated[
        dict[str, str], about("Settings of JAX that change programs and were not as they come, by name.")
    ]
    libtpu: Annotated[str | None, about("The compiler of a TPU, where that made the step, else null.")]
    torch: Annotated[str | None, about("PyTorch's version where it made the step, else null.")]
    tensorrt: Annotated[str | None, about("The version of TensorRT for RTX where that built an engine, else null.")]


class CompilerJson(Struct, frozen=True, kw_only=True):
    """What the compiler itself reports; null where it gives none."""

    argument_bytes: Size
    output_bytes: Size
    alias_bytes: Size
    temp_bytes: Size
    peak_memory_bytes: Size | None
    total_allocation_bytes: Size | None
    is_complete: Annotated[bool, Meta(description="Compiled to the end; else these are the totals of XLA's plan.")]
    optimal_seconds: Annotated[
        float | None, about("The compiler's estimate of the time of a step on a TPU; null unless compiled to the end.")
    ]


class AllocatorJson(Struct, frozen=True, kw_only=True):
    """PyTorch's caching allocator at the peak."""

    requested_bytes: Annotated[Size, about("The sizes of the live tensors.")]
    allocated_bytes: Annotated[
        Size | None, about("The sizes of their blocks: torch.cuda.max_memory_allocated. Null of a memory snapshot.")
    ]
    reserved_bytes: Annotated[Size, about("The sizes of all segments: torch.cuda.max_memory_reserved.")]


class EngineMemoryJson(Struct, frozen=True, kw_only=True):
    """What an inference engine holds: the builder's totals, and one figure that is inferred."""

    weights_bytes: Annotated[Size, about("Reported by the builder.")]
    activation_bytes: Annotated[Size, about("Reported by the builder, workspace included.")]
    input_bytes: Annotated[Size, about("Of the network's inputs.")]
    output_bytes: Annotated[Size, about("Of the network's outputs.")]
    persistent_bytes: Annotated[Size, about("Device persistent memory, reported by the builder.")]
    scratch_bytes: Annotated[Size, about("The largest of a layer, reported by the builder; part of activation_bytes.")]
    host_persistent_bytes: Annotated[Size, about("Reported by the builder; not device memory.")]
    replayed_bytes: Annotated[
        Size, about("Inferred: the most that tensors between layers hold at once, to set beside activation_bytes.")
    ]
    is_dynamic: Annotated[bool, about("Shapes vary; the figures are for the maximum of the profile.")]


class TimingsJson(Struct, frozen=True, kw_only=True):
    """Wall-clock seconds on the machine that made the capture, and of the analysis."""

    lower_seconds: Annotated[float, Meta(ge=0)]
    compile_seconds: Annotated[float, Meta(ge=0)]
    cached_compile_seconds: Annotated[
        float | None,
        Meta(
            description="What the compile took that made XLA's plan, where that is from the cache; null: compiled now."
        ),
    ]
    analysis_seconds: Annotated[float, Meta(ge=0)]


class ParamJson(Struct, frozen=True, kw_only=True):
    """One parameter leaf of a module."""

    name: str
    shape: Shape
    dtype: str


class ModuleJson(Struct, frozen=True, kw_only=True):
    """One module and everything under it."""

    path: Annotated[str, about("For example `layers_0/mlp`; empty for the root.")]
    bytes: Annotated[Size, about("The sum of its categories.")]
    num_params: Annotated[Size, about("Trainable parameters in it and under it.")]
    forward_flops: Annotated[
        Size, about("Operations of the forward pass in it and under it; 0 where scopes do not tell modules.")
    ]
    categories: CategorySizes
    params: Annotated[tuple[ParamJson, ...], about("Its own parameter leaves, not its children's.")]


class BufferJson(Struct, frozen=True, kw_only=True):
    """One buffer that is live at the peak.

    Size, shape, dtype, name, op, source, start, end and offset are the compiler's; category, module and phase are
    inferred.
    """

    size_bytes: Size
    padding_bytes: Annotated[Size, about("The part of size_bytes that holds no elements.")]
    shape: Shape
    dtype: Annotated[str, about("In XLA's words: `bf16`, `f32`, `s32`.")]
    category: Category
    module: Annotated[str, about("Path of its module; empty at top level.")]
    phase: Phase
    name: Annotated[str, about("The HLO instruction that defines it, or the argument's path.")]
    op: Annotated[str, about("The op name that JAX gave, or the argument's path.")]
    source: Annotated[
        str, about("`file.py:12`, the innermost line of the user's own code; empty where the program has none.")
    ]
    library: Annotated[
        str, about("The line of a library beneath it that says most of what it does; empty where there is none.")
    ]
    rule: Annotated[str, about("The attribution rule that claimed it.")]
    evidence: Annotated[str, about("Its reason, in one sentence.")]
    start: Annotated[Size, about("First position in program order at which it is live.")]
    end: Annotated[Size, about("Last position at which it is live.")]
    offset: Annotated[Size | None, about("Byte offset in the temp block; null outside it.")]


class ArgumentJson(Struct, frozen=True, kw_only=True):
    """One leaf of the step's arguments."""

    path: Annotated[str, about("As JAX writes it: `state.params['Dense_0']['kernel']`.")]
    role: Role
    shape: Shape
    dtype: Annotated[str, about("In JAX's words: `float32`.")]
    size_bytes: Size


class OpJson(Struct, frozen=True, kw_only=True):
    """One operation of a trace, over all its steps."""

    name: str
    op: Annotated[str, about("JAX's name.")]
    seconds: float
    num_calls: Size
    contains_others: Annotated[bool, about("A loop, branch or call: what is inside is in the list too.")]
    phase: Phase
    module: str
    category: Annotated[Category | None, about("Of the largest piece of memory that its result takes.")]
    held_bytes: Size


class ResidentJson(Struct, frozen=True, kw_only=True):
    """Resident memory of the process, on a CPU."""

    before_steps_bytes: Size
    argument_bytes: Size
    peak_bytes: Size
    num_devices: Annotated[Size, about("On how many devices it ran the step.")]


class MeasuredJson(Struct, frozen=True, kw_only=True):
    """What was measured when the step ran."""

    device: str
    platform: str
    num_steps: Annotated[Size, about("Steps that were timed.")]
    num_warmup_steps: Annotated[Size, about("Steps before them.")]
    step_seconds_median: Annotated[
        float | None, about("From the call to the end of the results on the device; null where no step was timed.")
    ]
    step_seconds_p10: float | None
    step_seconds_p90: float | None
    step_seconds: tuple[float, ...]
    examples_per_second: float | None
    tokens_per_second: float | None
    peak_flops_per_second: Annotated[
        float | None, about("Of the device: dense 16-bit matrix products; null where it is not known.")
    ]
    mfu: Annotated[
        float | None,
        about("(flops - recomputed_flops) of a step at the median time, as a share of peak_flops_per_second."),
    ]
    losses: Annotated[tuple[Number, ...], about("Of all steps, those of the warm-up first.")]
    peak_bytes: Annotated[
        Size | None, about("Peak of XLA's allocator; null on a CPU, and where something before the steps took more.")
    ]
    resident_growth_bytes: Annotated[int | None, about("By how much the process grew, on a CPU.")]
    predicted_bytes: Annotated[Size, about("The footprint, to set these against.")]
    pool: PoolMemory | None
    driver: DriverMemory | None
    resident: ResidentJson | None
    out_of_memory: OutOfMemory | None
    num_processes: Annotated[Size, about("Of the job of `jax.distributed` that ran it.")]
    devices: Annotated[
        tuple[MeasuredDevice, ...],
        about("Each of several, in the order of their processes; empty of one. Above stands that of the highest peak."),
    ]
    ops: Annotated[
        tuple[OpJson, ...], about("Operations of a trace, over all its steps, those that took most time first.")
    ]


class AdviceJson(Struct, frozen=True, kw_only=True):
    """One change that would lower the footprint."""

    rule: Annotated[str, about("The name of the rule that found it.")]
    what: Annotated[str, about("What to do.")]
    evidence: Annotated[str, about("What in this program says so.")]
    cost: Annotated[str, about("What it takes in exchange.")]
    code: Annotated[str, about("To paste into the step; empty if how_to says in words what to do.")]
    how_to: Annotated[str, about("The code, or what to do in words.")]
    technique: Annotated[str | None, about("The label of the technique that does it; null where memprof has none.")]
    saving_bytes: Annotated[
        Size, about("By how much the footprint is lower in the compiled step; an upper bound if is_compiled is false.")
    ]
    is_compiled: Annotated[bool, about("Whether memprof has compiled the step with this change.")]
    footprint_after_bytes: Annotated[Size | None, about("Of the step with this change; null where it is not compiled.")]
    recomputed_flops: Annotated[
        int | None, about("Floating-point operations that it computes again beside those of now; null likewise.")
    ]
    added_seconds: Annotated[
        float | None, about("By how much the roofline bound on the time of a step is higher; null where unknown.")
    ]
    meaning: Annotated[
        str,
        about(
            "Whether the step computes the same, by a run of both on the CPU: equal, close (within a tolerance),"
            " unproved (not run) or different; empty where it is not compiled."
        ),
    ]
    true_saving_bytes: Annotated[int | None, about("saving_bytes where it is compiled, otherwise null.")]
    refusal: Annotated[str, about("Why it could not be compiled; empty where it was, or was not asked for.")]


class KernelBufferJson(Struct, frozen=True, kw_only=True):
    """One reference of a kernel that lies in VMEM or SMEM."""

    kind: Annotated[str, about("`input`, `output` or `scratch`; in SMEM also `prefetch`, a scalar prefetch operand.")]
    dtype: Annotated[str, about("MLIR's name of the element type.")]
    shape: Annotated[Shape, about("Of one block.")]
    num_buffers: Annotated[Size, about("How many blocks are there at once: 2 if they are copied in the background.")]
    size_bytes: Annotated[Size, about("Of all of them, padding included; 0 if XLA keeps the whole array in VMEM.")]


class KernelJson(Struct, frozen=True, kw_only=True):
    """The calls of one Pallas kernel for a TPU from one source line."""

    name: Annotated[str, about("XLA's name of the calls, without a number.")]
    num_calls: Annotated[Size, about("In the program; one in a loop counts once.")]
    module: str
    source: Annotated[str, about("`file.py:12`, or empty.")]
    asked_bytes: Annotated[Size, about("VMEM of the blocks and the scratch memory, inferred from the kernel.")]
    used_bytes: Annotated[
        Size | None, about("What the compiler reports, with its own temporaries; null unless compiled to the end.")
    ]
    limit_bytes: Annotated[Size | None, about("Of VMEM for one kernel; null where it is unknown.")]
    buffers: Annotated[tuple[KernelBufferJson, ...], about("In VMEM.")]
    smem_asked_bytes: Annotated[Size, about("SMEM of the kernel, inferred from it.")]
    smem_limit_bytes: Annotated[Size | None, about("The SMEM of the chip; null where it is unknown.")]
    smem_buffers: Annotated[tuple[KernelBufferJson, ...], about("In SMEM.")]
    num_semaphores: Annotated[
        Size, about("That the kernel asks for, in semaphore memory; the compiler's own are not counted.")
    ]


class NeighbourJson(Struct, frozen=True, kw_only=True):
    """What makes the array that is copied, or reads the copy."""

    name: Annotated[str, about("Of the HLO instruction; empty of an argument or a result.")]
    op: Annotated[str, about("JAX's name of the operation, or the path of an argument.")]
    source: Annotated[str, about("`file.py:12`, or empty.")]
    role: Annotated[str, about("`operation`, `argument`, `constant`, `result` or `unknown`.")]


class LayoutCopyJson(Struct, frozen=True, kw_only=True):
    """One operation that only changes the layout of an array."""

    name: Annotated[str, about("The HLO instruction.")]
    kind: Annotated[str, about("`copy`, or with other dimensions `transpose` or `reshape`.")]
    dtype: str
    old_dtype: Annotated[str, about("Of the operand: the copy of a TPU may convert too.")]
    shape: Annotated[Shape, about("Of the result.")]
    layout: Annotated[str, about("Of the result, as XLA writes it; empty: row by row, without tiles.")]
    old_shape: Annotated[Shape, about("Of the operand.")]
    old_layout: str
    size_bytes: Annotated[Size, about("Of the result, padding included.")]
    space: Annotated[str, about("The memory that the result lies in: `hbm`, `vmem`.")]
    num_runs: Annotated[Size, about("In a step.")]
    step_bytes: Annotated[Size, about("What it writes in a step.")]
    is_at_least: Annotated[bool, about("It is in a loop of unknown length, which counts once.")]
    is_at_peak: Annotated[bool, about("The result is live at the peak.")]
    op: Annotated[str, about("JAX's name of the copy itself; the compiler names few.")]
    module: str
    source: str
    producer: Annotated[NeighbourJson, about("The operation that makes the array in its old layout.")]
    consumer: Annotated[
        NeighbourJson, about("Of the operations that read it in the new layout a matrix product, else the next one.")
    ]


_Fraction = Annotated[float, Meta(ge=0, le=1)]


class RooflineJson(Struct, frozen=True, kw_only=True):
    """A lower bound on the time of a step, by the peaks of its device; computed, never measured."""

    at_least_seconds: Annotated[float, Meta(gt=0)]
    compute_share: Annotated[_Fraction, about("The part of the time that is limited by the peak of the arithmetic.")]
    memory_share: Annotated[_Fraction, about("The part that is limited by the memory's bandwidth.")]
    communication_share: Annotated[_Fraction, about("The part that is limited by links to other devices or the host.")]
    priced_share: Annotated[float, Meta(ge=0.95, le=1), about("How many of the kernels of a step have a price.")]


class ReportJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.report/1"):
    """Where the device memory of one JAX training step goes.

    Sizes are whole bytes. Within version 1, fields may be added, never renamed or removed.
    """

    label: Annotated[str, about("What the reports call this configuration.")]
    workload: Annotated[str, about("The built-in name, or the user's own function.")]
    techniques: Annotated[tuple[str, ...], about("The techniques applied, in order.")]
    config: Annotated[
        dict[str, str | int | float | bool | None],
        about("The workload's configuration. Infinities and NaN are strings."),
    ]
    target: TargetJson
    toolchain: ToolchainJson
    footprint_bytes: Annotated[
        Size,
        about("What the allocator must hold: arguments, outputs that alias no argument, temp block, constants."),
    ]
    live_peak_bytes: Annotated[Size, about("The most bytes live at once. The footprint less this is fragmentation.")]
    padding_bytes: Annotated[
        Size, about("The part of live_peak_bytes that holds no elements: a TPU fills arrays up to whole tiles.")
    ]
    memory_spaces: Annotated[
        dict[str, Size],
        about("Bytes in each memory: `hbm` is the footprint; `vmem`, `smem` and others lie on the chip; `host`."),
    ]
    host_bytes: Annotated[Size, about("Bytes in host memory that the step holds, beside the footprint.")]
    fits: Annotated[bool | None, about("Whether the verdict is `fits`; null where it is `unknown`.")]
    verdict: VerdictJson
    refusal: Annotated[
        str, about("The compiler's own sentence where it refused the program, which does not fit; else empty.")
    ]
    kernels: Annotated[
        tuple[KernelJson, ...], about("The Pallas kernels of a program for a TPU, those that ask for most VMEM first.")
    ]
    layout_copies: Annotated[
        tuple[LayoutCopyJson, ...],
        about("The operations that only change the layout of an array, those that write most in a step first."),
    ]
    pressure: MaybePressure
    categories: Annotated[CategorySizes, about("The footprint by category (inferred). Adds up to footprint_bytes.")]
    compiler: CompilerJson
    num_params: Annotated[Size, about("Trainable parameters (elements).")]
    flops: Annotated[
        Size,
        about("Floating-point operations of a step's matrix products and convolutions, counted in the traced program."),
    ]
    recomputed_flops: Annotated[Size, about("The part of flops that rematerialisation repeats.")]
    roofline: Annotated[
        RooflineJson | None,
        about("The least time of a step; null where the device's peaks are not known or too few kernels have a price."),
    ]
    by_source: Annotated[Sums, about("The footprint by source line, largest first.")]
    by_dtype: Annotated[Sums, about("The footprint by dtype, largest first.")]
    by_phase: Annotated[PhaseSums, about("The footprint by phase, largest first.")]
    timings: TimingsJson
    modules: Annotated[
        tuple[ModuleJson, ...],
        about("A module before its children; the first is the root. Bytes include those of the children."),
    ]
    buffers: Annotated[
        tuple[BufferJson, ...], about("What is live at the peak, largest first. Adds up to live_peak_bytes.")
    ]
    unused_arguments: Annotated[
        tuple[ArgumentJson, ...], about("Argument leaves that jit dropped; not in the footprint.")
    ]
    doubts: Annotated[
        tuple[str, ...], about("Sentences about arguments whose role had to be guessed, or is not known.")
    ]
    mesh: Annotated[
        MeshJson | None,
        about("The devices, their shares of the arguments, and their collectives; null for one device."),
    ]
    measured: Annotated[MeasuredJson | None, about("What was measured when the step ran; null where it did not.")]
    advice: Annotated[
        tuple[AdviceJson, ...],
        about("What saves most first; empty where nothing would save 2% of the footprint."),
    ]
    framework: Annotated[str, about("The framework of the step: `jax` or `torch`; `onnx` of a model file.")]
    engine: Annotated[str, about("What runs the program: `xla` or `tensorrt`; empty where nothing is compiled.")]
    engine_memory: Annotated[
        EngineMemoryJson | None, about("What an inference engine holds, each figure with its source; else null.")
    ]
    allocator: Annotated[
        AllocatorJson | None, about("Of a step of PyTorch, whose footprint is what the allocator reserves; else null.")
    ]


def report_json(report: Report, advice: Sequence[Advice] | None = None) -> ReportJson:
    """What is printed of one report.

    Args:
        advice: where more is known of it than the report itself says.
    """
    return filled(
        ReportJson,
        report,
        config={name: _number(value) for name, value in report.config.items()},
        host_bytes=report.program.host_bytes,
        by_source=_largest_first(report.by_source),
        by_dtype=_largest_first(report.by_dtype),
        by_phase=_largest_first(report.by_phase),
        timings=filled(TimingsJson, report.timings, analysis_seconds=report.analysis_seconds),
        modules=[_module(node) for node in walk(report.modules)],
        engine_memory=None if report.engine_figures is None else filled(EngineMemoryJson, report.engine_figures),
        mesh=mesh_json(report),
        kernels=[
            KernelJson(
                name=each.name,
                num_calls=each.num_calls,
                module=each.module,
                source=each.source,
                asked_bytes=each.kernel.asked_bytes,
                used_bytes=each.kernel.used_bytes,
                limit_bytes=each.kernel.limit_bytes,
                buffers=tuple(filled(KernelBufferJson, buffer) for buffer in each.kernel.buffers),
                smem_asked_bytes=each.kernel.smem_bytes,
                smem_limit_bytes=each.kernel.smem_limit_bytes,
                smem_buffers=tuple(filled(KernelBufferJson, buffer) for buffer in each.kernel.smem_buffers),
                num_semaphores=each.kernel.num_semaphores,
            )
            for each in report.kernels
        ],
        measured=None if report.measured is None else _measured(report, report.measured),
        advice=[advice_json(each) for each in (advise(report) if advice is None else advice)],
    )


def advice_json(advice: Advice) -> AdviceJson:
    """What is printed of one piece of advice."""
    compiled = advice.compiled
    return filled(
        AdviceJson,
        advice.proposal,
        rule=advice.rule,
        code=advice.proposal.code_to_paste,
        saving_bytes=advice.saving_bytes,
        is_compiled=advice.is_compiled,
        footprint_after_bytes=None if compiled is None else compiled.footprint_bytes,
        recomputed_flops=None if compiled is None else compiled.recomputed_flops,
        added_seconds=None if compiled is None else compiled.seconds,
        meaning="" if compiled is None else compiled.meaning.value,
        true_saving_bytes=None if compiled is None else compiled.saving_bytes,
        refusal=advice.refusal,
    )


def walk(node: ModuleNode) -> Iterator[ModuleNode]:
    """A node before its children, so that the root (path "") comes first."""
    yield node
    for child in node.children:
        yield from walk(child)


def _module(node: ModuleNode) -> ModuleJson:
    return ModuleJson(
        path=node.path,
        bytes=node.size_bytes,
        num_params=node.num_params,
        forward_flops=node.forward_flops,
        categories={category: node.categories.get(category, 0) for category in Category},
        params=tuple(ParamJson(name=name, shape=shape, dtype=dtype) for name, shape, dtype in node.params),
    )


def _measured(report: Report, measured: Measurement) -> MeasuredJson:
    timed = bool(measured.step_seconds)
    return filled(
        MeasuredJson,
        measured,
        num_steps=len(measured.step_seconds),
        step_seconds_median=measured.median_seconds,
        step_seconds_p10=measured.percentile_seconds(10) if timed else None,
        step_seconds_p90=measured.percentile_seconds(90) if timed else None,
        examples_per_second=measured.per_second(measured.num_examples),
        tokens_per_second=measured.per_second(measured.num_tokens),
        mfu=measured.utilization(report.flops - report.recomputed_flops),
        losses=[_number(loss) for loss in measured.losses],
        peak_bytes=measured.pool.peak_bytes if measured.pool else None,
        resident_growth_bytes=measured.resident.growth_bytes if measured.resident else None,
        predicted_bytes=report.footprint_bytes,
        ops=report.op_costs,
    )


def _largest_first(sizes: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: sizes[key] for key in sorted(sizes, key=lambda key: (-sizes[key], key))}


def _number(value: str | float | bool | None) -> str | float | bool | None:
    """JSON has no infinity and no NaN: they become their names."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
