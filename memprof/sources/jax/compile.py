"""From a step to a capture: trace, lower, compile, and keep XLA's memory plan.

This happens in the child process (see `child.py`), because a compile can kill its process. Functions that trace a step
raise `MemprofError` if it cannot be compiled for the target, and whatever the user's function raises. Those that also
compile raise `WorkloadError` if XLA cannot compile the step, or crashes another process that compiles it.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

from memprof.analysis.hlo.decoded import FreshCapture, no_garbage_collection
from memprof.analysis.memory.pressure import memory_limit
from memprof.analysis.records.capture import ArgumentLeaf, Capture, CompilerTotals, Target, Timings, Toolchain
from memprof.analysis.records.device_family import family_of
from memprof.errors import MemprofError
from memprof.sources.jax.planning import WAITING, plan_key, planned_step
from memprof.sources.jax.processes.child_process import Children
from memprof.sources.jax.processes.launch import plan_in_child
from memprof.sources.jax.processes.task import DUMP_FOLDER
from memprof.sources.jax.processes.work_folder import work_folder
from memprof.sources.jax.roles.arguments import argument_leaves, place_on
from memprof.sources.jax.roles.leaf import longest_prefix, shortened
from memprof.sources.jax.targets.choose import Devices, devices_of
from memprof.sources.jax.targets.families import compiler_of, our_options, target_family
from memprof.sources.jax.targets.mesh import devices_of_step
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.barriers import fenced_values
from memprof.sources.jax.tracing.flops import count_flops, recomputed_flops
from memprof.sources.jax.tracing.jitting import JittedStep, TracedStep, is_array, jit_step, several_devices, trace_step
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla import xla_adapter
from memprof.sources.jax.xla.compiler_log import kept_stderr
from memprof.sources.jax.xla.flags import xla_flags
from memprof.sources.jax.xla.options import with_options
from memprof.sources.jax.xla.plan import (
    NOT_COMPILED,
    Plan,
    PlannedStep,
    compile_to_plan,
    read_plan,
    refusal,
    with_unlimited,
)
from memprof.sources.jax.xla.plan_cache import PlanCache, checked
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings, PlanTask, PortableProgram
from memprof.sources.jax.xla.toolchain import code_folders, toolchain
from memprof.sources.pool_settings import pool_settings

Progress = Callable[[str], None]
_UNLIMITED = "without_limit"  # folder of the second dump, inside that of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """A compiled step, with everything needed to run it.

    Attributes:
        executable: a callable with the arguments that the step's jit passes on, without static ones; None if only the
            plan was requested.
        given: these positional and keyword arguments, with the user's own leaves.
        arguments: the same arguments as shapes on the device.
        devices: the devices of this process that run the step; empty for an absent target.
    """

    planned: PlannedStep
    executable: Any
    given: tuple[tuple[Any, ...], Mapping[str, Any]]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    devices: tuple[jax.Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredStep:
    """A step that is lowered but not compiled.

    Attributes:
        capture: the capture before the compile.
        asked: XLA options of the step besides those that it was jitted with.
    """

    capture: Capture
    devices: Devices
    traced: TracedStep
    lowered: jax.stages.Lowered
    asked: Mapping[str, Any]

    @property
    def program(self) -> PortableProgram:
        """The program in a form that another process can compile, planned for JAX's pool."""
        program = xla_adapter.portable_program(self.lowered, self.devices.on_device)
        return replace(program, memory_limit_bytes=self.memory_limit_bytes)

    @property
    def memory_limit_bytes(self) -> int:
        """The limit to give to XLA; 0 for a present device, of which jaxlib itself tells XLA the limit."""
        target = self.capture.target
        return memory_limit(target, self.capture.pool) if target.is_deviceless else 0

    @property
    def options(self) -> dict[str, Any]:
        """All XLA options that the step requests."""
        return {**xla_adapter.jit_compiler_options(self.lowered), **self.asked}

    def plan_task(self, settings: CompileSettings) -> PlanTask:
        """Return the task to compile `program` in any process."""
        found = self.capture
        return PlanTask(
            target=found.target, options=self.options, xla_flags=found.toolchain.xla_flags, settings=settings
        )


def compile_step(
    spec: StepSpec, target: Target, *, dump_folder: Path, progress: Progress, stop_at_plan: bool = False
) -> CompiledStep:
    """Lower and compile a step for a target in this process: see `compile_lowered`."""
    step = lower_step(spec, target, progress)
    return compile_lowered(step, dump_folder=dump_folder, progress=progress, stop_at_plan=stop_at_plan)


def compile_lowered(
    step: LoweredStep, *, dump_folder: Path, progress: Progress, stop_at_plan: bool = False, use_cache: bool = False
) -> CompiledStep:
    """Compile a step in this process, from shapes alone, to an unchecked plan.

    Args:
        stop_at_plan: whether to return once XLA has planned the memory. XLA then continues to compile until this
            process ends.
        use_cache: whether the plan may come from the user's cache; only with `stop_at_plan`.
        dump_folder: an empty folder for XLA's dump, which remains there.
        progress: called with the name of each stage when it begins.

    Raises:
        MemprofError: XLA could not write its program.
        InternalError: XLA wrote several programs.
    """
    target, executable, program, on_device = step.capture.target, None, step.program, step.devices.on_device
    task = step.plan_task(CompileSettings(complete=not stop_at_plan))

    def compile_it() -> Plan:
        nonlocal executable
        progress("compiling")
        if stop_at_plan:
            return compile_program(program, task, dump_folder, on_device)
        plan, executable = _compiled(functools.partial(_runnable, step), task, dump_folder)
        return _with_unlimited(plan, program, task, dump_folder, on_device)

    if stop_at_plan and use_cache and _is_portable(target):
        key = plan_key(program, target, step.options)
        plan = PlanCache.of_user().find_or_make(key, compile_it, waiting=lambda: progress(WAITING))
    else:
        plan, key = compile_it(), ""
    return CompiledStep(
        planned=PlannedStep(lowered=step.capture, plan=plan, cache_key=key),
        executable=executable,
        given=step.traced.given,
        arguments=step.traced.abstract,
        devices=step.devices.here,
    )


def capture_of(
    spec: StepSpec, target: Target, *, progress: Progress, settings: CompileSettings = TO_THE_PLAN
) -> FreshCapture:
    """Capture a step whose function lives in this process; only XLA's part runs in another process.

    So the compile can be ended once the plan is complete, and a crash does not affect this process. For an accelerator
    of this machine, everything runs in this process, which may have reserved the device. The compile time includes the
    start of the other process.
    """
    plan = planned(lower_step(spec, target, progress), progress=progress, settings=settings)
    return checked(plan(), plan)


def planned(
    step: LoweredStep, *, progress: Progress, settings: CompileSettings = TO_THE_PLAN, children: Children | None = None
) -> Callable[[], PlannedStep]:
    """Return a function that compiles a lowered step in another process, for any thread (see `capture_of`).

    Args:
        children: the child processes that end together with this one, if any.
    """
    if not _is_portable(step.capture.target):
        return functools.partial(_planned_here, step, progress)
    program, task = step.program, step.plan_task(settings)
    make = functools.partial(plan_in_child, program, task, progress=progress, children=children)
    return functools.partial(planned_step, step.capture, program, task, make, progress=progress)


def _planned_here(step: LoweredStep, progress: Progress) -> PlannedStep:
    with work_folder() as folder:
        return compile_lowered(step, dump_folder=folder / DUMP_FOLDER, progress=progress).planned


@no_garbage_collection()
def lower_step(spec: StepSpec, target: Target, progress: Progress, step: JittedStep | None = None) -> LoweredStep:
    """Trace and lower a step for a compile in this or another process.

    The module names the calls that led here. So all callers must lower a step through the same line of code: compiles
    in this process and elsewhere then have the same key in the plan cache.

    Args:
        step: the already jitted call; None to jit the function as `spec` says.
    """
    started = time.perf_counter()
    progress("tracing")
    devices = devices_of_step(spec, target)
    traced = _trace(spec, target, devices, step)
    progress("lowering")
    lowered = _lower(traced, target, devices)
    arguments, doubts = argument_leaves(traced, lowered, spec.roles)
    doubts += _stubs(traced, target)
    _place_arguments(spec, lowered, arguments)
    flops = count_flops(traced.jaxpr)
    capture = Capture(
        label=spec.label,
        workload=spec.workload,
        techniques=spec.techniques,
        config=spec.config,
        target=target,
        toolchain=_toolchain(target),
        compiler=NOT_COMPILED,
        arguments=arguments,
        doubts=doubts,
        flops=flops.total(),
        recomputed_flops=recomputed_flops(flops),
        flops_by_scope=dict(flops),
        fenced_values=fenced_values(traced.jaxpr),
        timings=Timings(lower_seconds=time.perf_counter() - started, compile_seconds=0.0),
        hlo_proto=b"",
        folders=code_folders(),
        pool=pool_settings(target),
    )
    return LoweredStep(capture=capture, devices=devices, traced=traced, lowered=lowered, asked=spec.compiler_options)


def check_portable(target: Target) -> None:
    """Raise `MemprofError` for an accelerator of this machine, which other processes may be unable to use."""
    if not _is_portable(target):
        raise MemprofError(
            f"{target.description} is the local device, but --cluster cannot compile for it: name a target, for "
            "example --target h100-80gb"
        )


def compile_program(
    program: PortableProgram, task: PlanTask, dump_folder: Path, sharding: jax.sharding.Sharding | None = None
) -> Plan:
    """Compile a lowered program to an unchecked plan.

    Args:
        sharding: a sharding on the devices of the compile; None for those of the task's target.

    Raises:
        MemprofError: XLA does not accept an option that the step requests; or see `read_plan`.
        Exception: XLA cannot compile the program.
    """
    sharding = sharding or devices_of(task.target).on_device
    plan, _ = _compiled(functools.partial(xla_adapter.compile_portable, program, sharding), task, dump_folder)
    return _with_unlimited(plan, program, task, dump_folder, sharding)


def _compiled(compile_it: Callable[[Mapping[str, Any]], Any], task: PlanTask, dump_folder: Path) -> tuple[Plan, Any]:
    """Compile with a dump, to the plan or completely. Return the plan, and the result of a complete compile.

    Args:
        compile_it: the compile, given its XLA options.
    """
    is_complete, target, dump = task.settings.complete, task.target, xla_adapter.dump_options(dump_folder)
    compile_asked = functools.partial(
        with_options,
        lambda ours: compile_it({**ours, **task.options, **dump}),
        our_options(target, task.options, to_the_plan=not is_complete),
        task.options,
    )
    started = time.perf_counter()
    with xla_adapter.no_compilation_cache(), kept_stderr(dump_folder):
        if is_complete:
            compiled, refused = _unless_rejected(compile_asked, target)
        else:
            compiled, refused = None, compile_to_plan(compile_asked, dump_folder, refused_by=_rejecting_target(target))
    totals, seconds = None if compiled is None else _totals(compiled, target), time.perf_counter() - started
    return read_plan(dump_folder, totals=totals, compile_seconds=seconds, refusal=refused), compiled


def _with_unlimited(
    plan: Plan, program: PortableProgram, task: PlanTask, dump_folder: Path, sharding: jax.sharding.Sharding
) -> Plan:
    """Extend a plan with one without a memory limit, which shows the cost of the limit, if the target has any."""
    compiler, options = compiler_of(task.target), target_family(task.target.platform).unlimited
    if compiler is not None and compiler.with_ample_memory is not None:
        unlimited = replace(task, target=compiler.with_ample_memory(task.target), settings=TO_THE_PLAN)
        program = replace(program, memory_limit_bytes=0)
        sharding = devices_of(unlimited.target).on_device
    elif compiler is None and options:
        # The memory of a present device is fixed, but the share of it that XLA plans for can be changed.
        unlimited = replace(task, options={**task.options, **options}, settings=TO_THE_PLAN)
    else:
        return plan
    compile_it = functools.partial(xla_adapter.compile_portable, program, sharding)
    return with_unlimited(plan, lambda: _compiled(compile_it, unlimited, dump_folder / _UNLIMITED)[0])


def _rejecting_target(target: Target) -> Target | None:
    """Return the target if its compiler refuses programs that exceed its memory."""
    compiler = compiler_of(target)
    return target if compiler is not None and compiler.refuses else None


def _unless_rejected(compile_it: Callable[[], Any], target: Target) -> tuple[Any, str]:
    """Return the compiled program, or None and the compiler's error message if the program does not fit."""
    try:
        return compile_it(), ""
    except Exception as error:  # XLA's own errors have no common type
        sentence = "" if _rejecting_target(target) is None else refusal(error)
        if not sentence:
            raise
        return None, sentence


def _is_portable(target: Target) -> bool:
    """Whether any process can compile for the target; a device of this machine belongs to one process alone."""
    return target.is_deviceless or (family_of(target.platform).is_host and target.topology.num_devices == 1)


def key_of_step(spec: StepSpec, target: Target) -> str:
    """Return a key that is equal for steps with the same computation and argument shapes in one environment."""
    closed = traced_jaxpr(spec, target)
    content = hashlib.sha256(str(closed.jaxpr).encode())
    for const in closed.consts:
        content.update(np.asarray(const).tobytes() if is_array(const) else repr(const).encode())
    program = PortableProgram(module=content.digest(), compile_options=repr(spec.donate_argnums).encode())
    return plan_key(program, target, spec.compiler_options)


def traced_recomputation(spec: StepSpec, target: Target) -> int:
    """Return the FLOPs that a step recomputes, counted by tracing alone."""
    return recomputed_flops(count_flops(traced_jaxpr(spec, target)))


def traced_jaxpr(spec: StepSpec, target: Target) -> core.ClosedJaxpr:
    """Return the jaxpr of a step, in the primitives that JAX lowers."""
    return traced_step(spec, target).jaxpr


def traced_step(spec: StepSpec, target: Target) -> TracedStep:
    """Return a step as its jit traces it for a target."""
    return _trace(spec, target, devices_of_step(spec, target))


def _toolchain(target: Target) -> Toolchain:
    versions = target_family(target.platform).versions()
    settings = xla_adapter.changed_settings()
    return toolchain(versions.get("cuda_plugin"), xla_flags(), settings, libtpu=versions.get("libtpu"))


def _trace(spec: StepSpec, target: Target, devices: Devices, step: JittedStep | None = None) -> TracedStep:
    if spec.check_target is not None:
        spec.check_target(target)
    step, place = step or jit_step(spec), place_on(devices, spec.memory_kinds)
    own_devices, num_devices = devices.named, devices.as_written.num_devices
    # The jits of frameworks lower a step to trace it.
    callbacks = xla_adapter.callbacks_of_absent_devices()
    with _on(devices.device), xla_adapter.cudnn_of_absent_device(target), callbacks:
        traced = trace_step(step, place, own_devices, num_devices)
        if devices.sharding is not None and jit_adapter.has_pallas_kernels(traced.traced):
            # The lowering of Pallas kernels queries the GPU, which an enclosing mesh provides.
            with jit_adapter.mesh_around(devices.sharding.mesh):
                traced = trace_step(step, place, own_devices, num_devices)
    return traced


def _lower(step: TracedStep, target: Target, devices: Devices) -> jax.stages.Lowered:
    """Lower for the target, or only for its platform if the step names other devices.

    Raises:
        MemprofError: the step's number of devices differs from the target's.
    """
    with (
        _on(devices.device),
        xla_adapter.full_tracebacks(),
        xla_adapter.callbacks_of_absent_devices(),
        jit_adapter.arguments_with_dtypes(),
    ):
        if devices.written_for is not None:
            return xla_adapter.lower_for_platform(step.traced, target.platform)
        lowered = step.traced.lower()
        num_devices = xla_adapter.num_devices(lowered)
        if num_devices != devices.on_device.num_devices:
            raise several_devices("the step is sharded", num_devices)
        if xla_adapter.is_lowered_for(lowered, devices.on_device):
            return lowered
        return xla_adapter.lower_for_platform(step.traced, target.platform)


def _stubs(step: TracedStep, target: Target) -> tuple[str, ...]:
    """Return a sentence about the callbacks of a step compiled for an absent device, if any."""
    places = jit_adapter.callbacks(step.traced) if target.is_deviceless else ()
    if not places:
        return ()
    times = "once" if len(places) == 1 else f"{len(places)} times"
    return (
        f"The step calls Python {times} ({shortened(places)}). For an absent device, a stub with the same operands "
        "and results is compiled instead; memory that the callback itself uses on the host is not counted.",
    )


def _on(device: jax.Device) -> AbstractContextManager[Any]:
    """Trace for a device. Naming the default device would make JAX trace the step once more."""
    is_default = jax.config.jax_default_device is None and device == jax.local_devices()[0]
    return nullcontext() if is_default else jax.default_device(device)


def _place_arguments(spec: StepSpec, lowered: jax.stages.Lowered, arguments: Iterable[ArgumentLeaf]) -> None:
    """Put the arguments of the lowered program into the memories that the step assigns."""
    kinds = {}
    for leaf in arguments:
        prefix = longest_prefix(leaf.path, spec.memory_kinds)
        if prefix is not None and leaf.parameter_number is not None:
            kinds[leaf.parameter_number] = spec.memory_kinds[prefix]
    if kinds:
        xla_adapter.place_arguments(lowered, kinds)


def _runnable(step: LoweredStep, options: Mapping[str, Any]) -> Any:
    """Compile a step to an executable that can be called, if this process has its devices."""
    on_device = step.devices.on_device
    # JAX passes callbacks along with a program, but the compiler for absent devices accepts none. JAX has no option for
    # the limit of memory.
    is_portable_alone = step.memory_limit_bytes or (
        step.capture.target.is_deviceless and xla_adapter.has_callbacks(step.lowered)
    )
    if xla_adapter.is_lowered_for(step.lowered, on_device) and not is_portable_alone:
        return step.lowered.compile(compiler_options=dict(options))
    return xla_adapter.compile_portable(step.program, on_device, options)


def _totals(compiled: Any, target: Target) -> CompilerTotals:
    totals = xla_adapter.memory_totals(compiled)
    return CompilerTotals(
        argument_bytes=totals["argument_bytes"],
        output_bytes=totals["output_bytes"],
        alias_bytes=totals["alias_bytes"],
        temp_bytes=totals["temp_bytes"],
        peak_memory_bytes=totals.get("peak_memory_bytes") if family_of(target.platform).has_peak else None,
        total_allocation_bytes=totals.get("total_allocation_bytes"),
        optimal_seconds=xla_adapter.optimal_seconds(compiled) if family_of(target.platform).has_time_estimate else None,
    )
