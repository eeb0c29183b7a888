"""From a step to a capture: trace, lower, compile, and keep what XLA says about memory.

Runs in the child process (see `child.py`), since a compile can kill its process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from memprof.analysis.capture import ArgumentLeaf, Capture, CompilerTotals, Target, Timings
from memprof.analysis.checks import check_allocations, plan_totals, totals_of
from memprof.capture import xla_adapter
from memprof.capture.arguments import argument_leaves, place_on
from memprof.capture.deviceless_options import deviceless_options
from memprof.capture.flops import count_flops, recomputed_flops
from memprof.capture.jitting import TracedStep, jit_step, several_devices, trace_step
from memprof.capture.plan import compile_to_plan, read_plan
from memprof.capture.roles.paths import longest_prefix
from memprof.capture.source_lines import source_lines_of
from memprof.capture.step import StepSpec
from memprof.capture.targets.choose import Devices, devices_of
from memprof.capture.toolchain import code_folders, toolchain
from memprof.errors import MemprofError

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """A capture, and what it takes to run what was captured.

    Attributes:
        executable: takes the arguments that the step's jit passes on; what is static is in it. None where only the
            plan was asked for.
        given: these arguments, positional and by keyword, with the user's own leaves.
        arguments: the same as shapes on the device.
        device: the local device that it was traced for, and runs on where the target is here.
    """

    capture: Capture
    executable: Any
    given: tuple[tuple[Any, ...], Mapping[str, Any]]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    device: jax.Device


def compile_step(
    spec: StepSpec, target: Target, *, dump_folder: Path, progress: Progress, stop_at_plan: bool = False
) -> CompiledStep:
    """Compile a step for a target, on shapes alone, and capture its buffer assignment.

    Args:
        stop_at_plan: return once XLA has planned the memory. It goes on compiling until this process ends.
        dump_folder: an empty folder for XLA's dump; left as XLA filled it.
        progress: called with the name of each stage as it begins.

    Raises:
        MemprofError: XLA could not write its program, or not all of it.
        InternalError: XLA wrote a program that does not hold together.
        Exception: whatever the user's function raises while it is traced.
    """
    started = time.perf_counter()
    progress("tracing")
    devices = devices_of(target)
    step = _trace(spec, target, devices)
    progress("lowering")
    lowered = _lower(step, target, devices)
    arguments, doubts = argument_leaves(step, lowered, spec.roles)
    _place_arguments(spec, lowered, arguments)
    flops = count_flops(step.traced.jaxpr)
    lowered_at = time.perf_counter()
    progress("compiling")
    own_options = {**xla_adapter.jit_compiler_options(lowered), **spec.compiler_options}
    with xla_adapter.no_compilation_cache(), _our_options(target, own_options, dump_folder) as ours:
        compile_it = functools.partial(_compile, lowered, devices, spec.compiler_options, ours, dump_folder)
        executable = None
        if stop_at_plan:
            compile_to_plan(compile_it, dump_folder)
        else:
            executable = compile_it()
    compiled_at = time.perf_counter()
    hlo_proto, program, table = read_plan(dump_folder)
    totals = plan_totals(table, platform=target.platform) if executable is None else _totals(executable, target)
    check_allocations(totals, table)
    folders = code_folders()
    capture = Capture(
        label=spec.label,
        workload=spec.workload,
        techniques=spec.techniques,
        config=spec.config,
        target=target,
        toolchain=toolchain(xla_adapter.cuda_plugin_version(), xla_adapter.changed_settings()),
        compiler=totals,
        arguments=arguments,
        doubts=doubts,
        flops=flops.total(),
        recomputed_flops=recomputed_flops(flops),
        flops_by_scope=dict(flops),
        timings=Timings(lower_seconds=lowered_at - started, compile_seconds=compiled_at - lowered_at),
        hlo_proto=hlo_proto,
        replay=totals_of(table),
        source_lines=source_lines_of(program, folders),
        folders=folders,
    )
    return CompiledStep(
        capture=capture, executable=executable, given=step.given, arguments=step.abstract, device=devices.device
    )


def traced_recomputation(spec: StepSpec, target: Target) -> int:
    """The floating-point operations that a step computes again, which tracing alone tells.

    Raises:
        MemprofError: the step cannot be compiled for that target.
        Exception: whatever the user's function raises while it is traced.
    """
    return recomputed_flops(count_flops(_trace(spec, target, devices_of(target)).traced.jaxpr))


def _trace(spec: StepSpec, target: Target, devices: Devices) -> TracedStep:
    if spec.check_target is not None:
        spec.check_target(target)
    step, place, own_devices = jit_step(spec), place_on(devices, spec.memory_kinds), devices.on_device.device_set
    with jax.default_device(devices.device):
        traced = trace_step(step, place, own_devices)
        if devices.sharding is not None and xla_adapter.has_pallas_kernels(traced.traced):
            # Their lowering asks which GPU it is for; a mesh around all of it tells.
            with xla_adapter.mesh_around(devices.sharding.mesh):
                traced = trace_step(step, place, own_devices)
    return traced


def _lower(step: TracedStep, target: Target, devices: Devices) -> jax.stages.Lowered:
    """Lower for the target, or at least for its platform where the step names another device.

    Raises:
        MemprofError: the step runs on several devices.
    """
    with jax.default_device(devices.device), xla_adapter.full_tracebacks():
        lowered = step.traced.lower()
        num_devices = xla_adapter.num_devices(lowered)
        if num_devices > 1:
            raise several_devices("the step is sharded", num_devices)
        if xla_adapter.is_lowered_for(lowered, devices.on_device):
            return lowered
        return xla_adapter.lower_for_platform(step.traced, target.platform)


def _place_arguments(spec: StepSpec, lowered: jax.stages.Lowered, arguments: Iterable[ArgumentLeaf]) -> None:
    """Put the arguments of the lowered program into the memory that they live in."""
    kinds = {}
    for leaf in arguments:
        prefix = longest_prefix(leaf.path, spec.memory_kinds)
        if prefix is not None and leaf.parameter_number is not None:
            kinds[leaf.parameter_number] = spec.memory_kinds[prefix]
    if kinds:
        xla_adapter.place_arguments(lowered, kinds)


def _our_options(
    target: Target, own_options: Iterable[str], dump_folder: Path
) -> AbstractContextManager[Mapping[str, str]]:
    """XLA's options for a compile that are ours: none where the program may run."""
    if not target.is_deviceless:
        return nullcontext({})
    return deviceless_options(target, own_options, dump_folder, xla_adapter.cuda_plugin_version())


def _compile(
    lowered: jax.stages.Lowered,
    devices: Devices,
    options: Mapping[str, str],
    our_options: Mapping[str, str],
    dump_folder: Path,
) -> Any:
    """Compile with a dump. An option of ours that this XLA has not is left out.

    Raises:
        MemprofError: XLA has no such option, or it does not take that value.
    """
    own_options = xla_adapter.jit_compiler_options(lowered)
    ours = dict(our_options)
    dump = xla_adapter.dump_options(dump_folder)
    while True:
        try:
            if xla_adapter.is_lowered_for(lowered, devices.on_device):
                return lowered.compile(compiler_options={**ours, **options, **dump})
            all_options = {**ours, **own_options, **options, **dump}
            return xla_adapter.compile_for_device(lowered, devices.on_device, all_options)
        except Exception as error:  # XLA's own errors have no common type
            unknown = [name for name in ours if xla_adapter.rejected_option(error, [name])]
            if unknown:
                ours = {name: value for name, value in ours.items() if name not in unknown}
                continue
            reason = xla_adapter.rejected_option(error, options)
            if reason is None:
                raise
            raise MemprofError(f"XLA does not accept an option of this step: {reason}") from error


def _totals(compiled: Any, target: Target) -> CompilerTotals:
    totals = xla_adapter.memory_totals(compiled)
    return CompilerTotals(
        argument_bytes=totals["argument_bytes"],
        output_bytes=totals["output_bytes"],
        alias_bytes=totals["alias_bytes"],
        temp_bytes=totals["temp_bytes"],
        # On CPU, XLA leaves the temporaries out of its peak (jaxlib 0.10.2 to 0.12).
        peak_memory_bytes=None if target.platform == "cpu" else totals.get("peak_memory_bytes"),
        total_allocation_bytes=totals.get("total_allocation_bytes"),
    )
