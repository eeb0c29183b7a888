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
    memory_bytes: Annotated[Size | None, about("Device memory; null if there is no fixed amount.")]
    description: Annotated[str, about("The vendor's name of the device.")]
    platform: Annotated[str, about("XLA's platform: `cuda` or `cpu`.")]
    compute_capability: Annotated[str | None, about("For example `9.0`; null if there is none.")]
    reason: Annotated[str, about("The reason why this target was chosen.")]


class ToolchainJson(Struct, frozen=True, kw_only=True):
    """The versions that made the capture; null if not installed."""

    memprof: str
    jax: Annotated[str, about("Empty for a PyTorch step, as is jaxlib.")]
    jaxlib: str
    python: str
    cuda_plugin: str | None
    flax: str | None
    optax: str | None
    xla_flags: Annotated[str, about("The XLA flags that were set; empty if there are none.")]
    jax_settings: Annotated[
        dict[str, str], about("Settings of JAX that change programs and differ from the defaults, by name.")
    ]
    libtpu: Annotated[str | None, about("The version of libtpu, the compiler for TPUs; null for other targets.")]
    torch: Annotated[str | None, about("PyTorch's version; null for other steps.")]
    tensorrt: Annotated[str | None, about("The version of TensorRT for RTX; null if it built no engine.")]


class CompilerJson(Struct, frozen=True, kw_only=True):
    """The compiler's own totals; null if it reports none."""

    argument_bytes: Size
    output_bytes: Size
    alias_bytes: Size
    temp_bytes: Size
    peak_memory_bytes: Size | None
    total_allocation_bytes: Size | None
    is_complete: Annotated[
        bool, Meta(description="Whether the compile was completed; otherwise these are the totals of XLA's plan.")
    ]
    optimal_seconds: Annotated[
        float | None,
        about("The compiler's estimate of the time of a step on a TPU; null unless the compile was completed."),
    ]


class AllocatorJson(Struct, frozen=True, kw_only=True):
    """PyTorch's caching allocator at the peak."""

    requested_bytes: Annotated[Size, about("Total size of the live tensors.")]
    allocated_bytes: Annotated[
        Size | None, about("Total size of their blocks: torch.cuda.max_memory_allocated; null for a memory snapshot.")
    ]
    reserved_bytes: Annotated[Size, about("Total size of all segments: torch.cuda.max_memory_reserved.")]


class EngineMemoryJson(Struct, frozen=True, kw_only=True):
    """The memory of an inference engine: the builder's totals, and one inferred figure."""

    weights_bytes: Annotated[Size, about("Reported by the builder.")]
    activation_bytes: Annotated[Size, about("Reported by the builder, workspace included.")]
    input_bytes: Annotated[Size, about("Size of the network's inputs.")]
    output_bytes: Annotated[Size, about("Size of the network's outputs.")]
    persistent_bytes: Annotated[Size, about("Device persistent memory, reported by the builder.")]
    scratch_bytes: Annotated[
        Size, about("The largest scratch memory of a layer, reported by the builder; part of activation_bytes.")
    ]
    host_persistent_bytes: Annotated[Size, about("Reported by the builder; not device memory.")]
    replayed_bytes: Annotated[
        Size, about("Inferred: the peak of the tensors between layers, to compare with activation_bytes.")
    ]
    is_dynamic: Annotated[bool, about("Whether shapes vary; the figures are for the maximum of the profile.")]


class TimingsJson(Struct, frozen=True, kw_only=True):
    """Wall-clock seconds on the machine that made the capture, and of the analysis."""

    lower_seconds: Annotated[float, Meta(ge=0)]
    compile_seconds: Annotated[float, Meta(ge=0)]
    cached_compile_seconds: Annotated[
        float | None,
        Meta(description="Time of the original compile if XLA's plan is from the cache; null if it was compiled now."),
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
        Size, about("FLOPs of the forward pass in it and under it; 0 if scopes do not show modules.")
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
    dtype: Annotated[str, about("XLA's name: `bf16`, `f32`, `s32`.")]
    category: Category
    module: Annotated[str, about("Path of its module; empty at top level.")]
    phase: Phase
    name: Annotated[str, about("The HLO instruction that defines it, or the argument's path.")]
    op: Annotated[str, about("The op name that JAX gave, or the argument's path.")]
    source: Annotated[
        str, about("`file.py:12`, the innermost line of the user's own code; empty if the program has none.")
    ]
    library: Annotated[str, about("The most informative line of a library called there; empty if there is none.")]
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
    dtype: Annotated[str, about("JAX's name: `float32`.")]
    size_bytes: Size


class OpJson(Struct, frozen=True, kw_only=True):
    """One operation of a trace, over all its steps."""

    name: str
    op: Annotated[str, about("JAX's name.")]
    seconds: float
    num_calls: Size
    contains_others: Annotated[bool, about("Whether it is a loop, branch or call, whose content is in the list, too.")]
    phase: Phase
    module: str
    category: Annotated[Category | None, about("Category of the largest buffer of its result.")]
    held_bytes: Size


class ResidentJson(Struct, frozen=True, kw_only=True):
    """Resident memory of the process, on a CPU."""

    before_steps_bytes: Size
    argument_bytes: Size
    peak_bytes: Size
    num_devices: Annotated[Size, about("Number of devices on which it ran the step.")]


class MeasuredJson(Struct, frozen=True, kw_only=True):
    """The measurements of running steps."""

    device: str
    platform: str
    num_steps: Annotated[Size, about("Steps that were timed.")]
    num_warmup_steps: Annotated[Size, about("Steps before them.")]
    step_seconds_median: Annotated[
        float | None, about("From the call to the end of the results on the device; null if no step was timed.")
    ]
    step_seconds_p10: float | None
    step_seconds_p90: float | None
    step_seconds: tuple[float, ...]
    examples_per_second: float | None
    tokens_per_second: float | None
    peak_flops_per_second: Annotated[
        float | None, about("The device's peak for dense 16-bit matrix products; null if it is unknown.")
    ]
    mfu: Annotated[
        float | None,
        about("(flops - recomputed_flops) of a step at the median time, as a share of peak_flops_per_second."),
    ]
    losses: Annotated[tuple[Number, ...], about("Losses of all steps, including the warm-up.")]
    peak_bytes: Annotated[
        Size | None, about("Peak of XLA's allocator; null on a CPU, or if the process used more before the steps.")
    ]
    resident_growth_bytes: Annotated[int | None, about("Growth of the process on a CPU.")]
    predicted_bytes: Annotated[Size, about("The footprint, for comparison.")]
    pool: PoolMemory | None
    driver: DriverMemory | None
    resident: ResidentJson | None
    out_of_memory: OutOfMemory | None
    num_processes: Annotated[Size, about("Number of processes of the `jax.distributed` job.")]
    devices: Annotated[
        tuple[MeasuredDevice, ...],
        about(
            "Each device, by process; empty for one device. The fields above are for the device with the highest peak."
        ),
    ]
    ops: Annotated[tuple[OpJson, ...], about("Operations of a trace, over all its steps, slowest first.")]


class AdviceJson(Struct, frozen=True, kw_only=True):
    """One change that would lower the footprint."""

    rule: Annotated[str, about("The name of the rule that found it.")]
    what: Annotated[str, about("What to do.")]
    evidence: Annotated[str, about("The facts of this program that support it.")]
    cost: Annotated[str, about("The price of the change.")]
    code: Annotated[str, about("Code to paste into the step; empty if how_to has an instruction in words.")]
    how_to: Annotated[str, about("The code, or an instruction in words.")]
    technique: Annotated[str | None, about("The label of memprof's technique; null if memprof has no such technique.")]
    saving_bytes: Annotated[Size, about("The saving; an upper bound if is_compiled is false.")]
    is_compiled: Annotated[bool, about("Whether memprof has compiled the step with this change.")]
    footprint_after_bytes: Annotated[
        Size | None, about("Footprint of the step with this change; null if it was not compiled.")
    ]
    recomputed_flops: Annotated[int | None, about("Additional recomputed FLOPs; null if it was not compiled.")]
    added_seconds: Annotated[
        float | None, about("Increase of the roofline bound on the time of a step; null if it is unknown.")
    ]
    meaning: Annotated[
        str,
        about(
            "Whether the step computes the same: equal or close (within a tolerance) in a run of both on the CPU,"
            " same_operations (proved from traces), unproved or different; empty if it is not compiled."
        ),
    ]
    true_saving_bytes: Annotated[int | None, about("saving_bytes if it is compiled, otherwise null.")]
    refusal: Annotated[str, about("The reason why it could not be compiled; empty if it was, or was not requested.")]


class KernelBufferJson(Struct, frozen=True, kw_only=True):
    """One reference of a kernel that lies in VMEM or SMEM."""

    kind: Annotated[str, about("`input`, `output` or `scratch`; in SMEM also `prefetch`, a scalar prefetch operand.")]
    dtype: Annotated[str, about("MLIR's name of the element type.")]
    shape: Annotated[Shape, about("Shape of one block.")]
    num_buffers: Annotated[Size, about("Number of blocks at a time: 2 if they are copied in the background.")]
    size_bytes: Annotated[Size, about("Size of all blocks, padding included; 0 if XLA keeps the whole array in VMEM.")]


class KernelJson(Struct, frozen=True, kw_only=True):
    """The calls of one Pallas kernel for a TPU from one source line."""

    name: Annotated[str, about("XLA's name of the calls, without a number.")]
    num_calls: Annotated[Size, about("Number of calls in the program; a call in a loop counts once.")]
    module: str
    source: Annotated[str, about("`file.py:12`, or empty.")]
    asked_bytes: Annotated[Size, about("VMEM of the blocks and the scratch memory, inferred from the kernel.")]
    used_bytes: Annotated[
        Size | None,
        about("VMEM reported by the compiler, with its own temporaries; null unless the compile was completed."),
    ]
    limit_bytes: Annotated[Size | None, about("Limit of VMEM for one kernel; null if it is unknown.")]
    buffers: Annotated[tuple[KernelBufferJson, ...], about("Its references in VMEM.")]
    smem_asked_bytes: Annotated[Size, about("SMEM of the kernel, inferred from the kernel.")]
    smem_limit_bytes: Annotated[Size | None, about("The SMEM of the chip; null if it is unknown.")]
    smem_buffers: Annotated[tuple[KernelBufferJson, ...], about("Its references in SMEM.")]
    num_semaphores: Annotated[
        Size, about("Number of semaphores that the kernel requests; those of the compiler are not counted.")
    ]


class NeighbourJson(Struct, frozen=True, kw_only=True):
    """An operation that makes the array or reads its copy."""

    name: Annotated[str, about("Name of the HLO instruction; empty for an argument or a result.")]
    op: Annotated[str, about("JAX's name of the operation, or the path of an argument.")]
    source: Annotated[str, about("`file.py:12`, or empty.")]
    role: Annotated[str, about("`operation`, `argument`, `constant`, `result` or `unknown`.")]


class LayoutCopyJson(Struct, frozen=True, kw_only=True):
    """One operation that only changes the layout of an array."""

    name: Annotated[str, about("The HLO instruction.")]
    kind: Annotated[str, about("`copy`, or with other dimensions `transpose` or `reshape`.")]
    dtype: str
    old_dtype: Annotated[str, about("Dtype of the operand; a TPU's copy may also convert.")]
    shape: Annotated[Shape, about("Shape of the result.")]
    layout: Annotated[str, about("Layout of the result, as XLA writes it; empty means row-major, without tiles.")]
    old_shape: Annotated[Shape, about("Shape of the operand.")]
    old_layout: str
    size_bytes: Annotated[Size, about("Size of the result, padding included.")]
    space: Annotated[str, about("The memory that the result lies in: `hbm`, `vmem`.")]
    num_runs: Annotated[Size, about("Number of runs in a step.")]
    step_bytes: Annotated[Size, about("Bytes that it writes in a step.")]
    is_at_least: Annotated[bool, about("Whether it is in a loop of unknown length, which counts once.")]
    is_at_peak: Annotated[bool, about("Whether the result is live at the peak.")]
    op: Annotated[str, about("JAX's name of the copy itself; the compiler names few.")]
    module: str
    source: str
    producer: Annotated[NeighbourJson, about("The operation that makes the array in its old layout.")]
    consumer: Annotated[
        NeighbourJson,
        about(
            "A matrix product that reads it in the new layout or, if there is none, the next operation that reads it."
        ),
    ]


_Fraction = Annotated[float, Meta(ge=0, le=1)]


class RooflineJson(Struct, frozen=True, kw_only=True):
    """A lower bound on the time of a step, by the peaks of its device; computed, never measured."""

    at_least_seconds: Annotated[float, Meta(gt=0)]
    compute_share: Annotated[_Fraction, about("The share of the time that is limited by arithmetic.")]
    memory_share: Annotated[_Fraction, about("The share that is limited by memory bandwidth.")]
    communication_share: Annotated[_Fraction, about("The share that is limited by links to other devices or the host.")]
    priced_share: Annotated[float, Meta(ge=0.95, le=1), about("Share of a step's kernels whose time is known.")]


class ReportJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.report/1"):
    """Where the device memory of one JAX training step goes.

    Sizes are whole bytes. Within version 1, fields may be added, never renamed or removed.
    """

    label: Annotated[str, about("Label of this configuration in reports.")]
    workload: Annotated[str, about("Name of the built-in workload, or of the user's function.")]
    techniques: Annotated[tuple[str, ...], about("The techniques applied, in order.")]
    config: Annotated[
        dict[str, str | int | float | bool | None],
        about("The workload's configuration. Infinities and NaN are strings."),
    ]
    target: TargetJson
    toolchain: ToolchainJson
    footprint_bytes: Annotated[
        Size,
        about("Bytes that the allocator must hold: arguments, outputs that alias no argument, temp block, constants."),
    ]
    live_peak_bytes: Annotated[
        Size, about("Largest number of bytes that are live at once. The rest of the footprint is fragmentation.")
    ]
    padding_bytes: Annotated[
        Size, about("The part of live_peak_bytes that holds no elements: a TPU fills arrays up to whole tiles.")
    ]
    memory_spaces: Annotated[
        dict[str, Size],
        about("Bytes in each memory: `hbm` is the footprint; `vmem`, `smem` and others lie on the chip; `host`."),
    ]
    host_bytes: Annotated[Size, about("Bytes in host memory that the step holds, beside the footprint.")]
    fits: Annotated[bool | None, about("Whether the verdict is `fits`; null if it is `unknown`.")]
    verdict: VerdictJson
    refusal: Annotated[
        str, about("The compiler's message if it rejected the program, which then does not fit; otherwise empty.")
    ]
    kernels: Annotated[tuple[KernelJson, ...], about("The Pallas kernels of a program for a TPU, most VMEM first.")]
    layout_copies: Annotated[
        tuple[LayoutCopyJson, ...],
        about("The operations that only change the layout of an array, most written bytes first."),
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
        about(
            "A lower bound on the time of a step; null if the device's peaks, or too many kernels' times, are unknown."
        ),
    ]
    by_source: Annotated[Sums, about("The footprint by source line, largest first.")]
    by_dtype: Annotated[Sums, about("The footprint by dtype, largest first.")]
    by_phase: Annotated[PhaseSums, about("The footprint by phase, largest first.")]
    timings: TimingsJson
    modules: Annotated[
        tuple[ModuleJson, ...],
        about(
            "The module tree, a module before its children; the first is the root. Bytes include those of the children."
        ),
    ]
    buffers: Annotated[
        tuple[BufferJson, ...],
        about("Buffers that are live at the peak, largest first. They add up to live_peak_bytes."),
    ]
    unused_arguments: Annotated[
        tuple[ArgumentJson, ...], about("Argument leaves that jit dropped; not in the footprint.")
    ]
    doubts: Annotated[tuple[str, ...], about("Sentences about arguments whose role is a guess or unknown.")]
    mesh: Annotated[
        MeshJson | None,
        about("The devices, their shares of the arguments, and their collectives; null for one device."),
    ]
    measured: Annotated[MeasuredJson | None, about("Measurements of running steps; null if the step was not run.")]
    advice: Annotated[
        tuple[AdviceJson, ...],
        about("Changes that lower the peak, best first; empty if no change saves 2% of the footprint."),
    ]
    framework: Annotated[str, about("The framework of the step: `jax` or `torch`; `onnx` for a model file.")]
    engine: Annotated[
        str, about("The engine that runs the program: `xla` or `tensorrt`; empty if nothing is compiled.")
    ]
    engine_memory: Annotated[
        EngineMemoryJson | None,
        about("The memory of an inference engine, each figure with its source; null for other programs."),
    ]
    allocator: Annotated[
        AllocatorJson | None,
        about("PyTorch's caching allocator, whose reserved bytes are the footprint; null for a JAX step."),
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
            filled(
                KernelJson,
                each.kernel,
                name=each.name,
                num_calls=each.num_calls,
                module=each.module,
                source=each.source,
                smem_asked_bytes=each.kernel.smem_bytes,
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
