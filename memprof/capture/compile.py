"""From a step to a capture: trace, lower, compile, and keep what XLA says about memory.

Runs in the child process (see `child.py`), since a compile can kill its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from memprof.analysis.capture import ArgumentLeaf, Capture, CompilerTotals, TargetInfo, Timings
from memprof.capture import xla_adapter
from memprof.capture.arguments import abstract_arguments, argument_leaves
from memprof.capture.deviceless_options import deviceless_options
from memprof.capture.flops import count_flops, recomputed_flops
from memprof.capture.jitting import JittedStep, jit_step
from memprof.capture.roles.paths import longest_prefix
from memprof.capture.step import StepSpec
from memprof.capture.targets.choose import ChosenTarget
from memprof.capture.toolchain import toolchain
from memprof.errors import InternalError, MemprofError

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """A capture, and what it takes to run what was captured.

    Attributes:
        given: the positional arguments as the user gave them, without what is no array.
        arguments: the same as shapes on the device.
    """

    capture: Capture
    executable: jax.stages.Compiled
    given: tuple[Any, ...]
    arguments: tuple[Any, ...]


def compile_step(spec: StepSpec, target: ChosenTarget, *, dump_folder: Path, progress: Progress) -> CompiledStep:
    """Compile a step for a target, on shapes alone, and capture its buffer assignment.

    Args:
        dump_folder: an empty folder for XLA's dump; left as XLA filled it.
        progress: called with the name of each stage as it begins.

    Raises:
        InternalError: XLA wrote no program.
        Exception: whatever the user's function raises while it is traced.
    """
    jitted = _jit(spec, target)
    abstract = abstract_arguments(jitted, target, spec.memory_kinds)
    started = time.perf_counter()
    progress("tracing")
    with jax.default_device(target.device):
        traced = abstract.fn.trace(*abstract.args, **abstract.kwargs)
        progress("lowering")
        lowered = traced.lower()
    arguments, doubts = argument_leaves(jitted, traced, lowered, spec.roles)
    _place_arguments(spec, lowered, arguments)
    lowered_at = time.perf_counter()
    progress("compiling")
    is_deviceless = target.sharding is not None
    plugin = xla_adapter.cuda_plugin_version()
    ours = deviceless_options(target.info, dump_folder, plugin) if is_deviceless else nullcontext({})
    with xla_adapter.no_compilation_cache(), ours as our_options:
        compiled = _compile(lowered, spec.compiler_options, our_options, dump_folder)
    compiled_at = time.perf_counter()
    flops = count_flops(traced.jaxpr)
    capture = Capture(
        label=spec.label,
        workload=spec.workload,
        techniques=spec.techniques,
        config=spec.config,
        target=target.info,
        toolchain=toolchain(plugin),
        compiler=_totals(compiled, target.info),
        arguments=arguments,
        doubts=doubts,
        flops=flops.total(),
        recomputed_flops=recomputed_flops(flops),
        flops_by_scope=dict(flops),
        timings=Timings(lower_seconds=lowered_at - started, compile_seconds=compiled_at - lowered_at),
        hlo_proto=_read_dump(dump_folder),
    )
    return CompiledStep(capture=capture, executable=compiled, given=jitted.args, arguments=abstract.args)


def traced_recomputation(spec: StepSpec, target: ChosenTarget) -> int:
    """The floating-point operations that a step computes again, which tracing alone tells.

    Raises:
        MemprofError: the step cannot be compiled for that target.
        Exception: whatever the user's function raises while it is traced.
    """
    abstract = abstract_arguments(_jit(spec, target), target, spec.memory_kinds)
    with jax.default_device(target.device):
        return recomputed_flops(count_flops(abstract.fn.trace(*abstract.args, **abstract.kwargs).jaxpr))


def _jit(spec: StepSpec, target: ChosenTarget) -> JittedStep:
    if spec.check_target is not None:
        spec.check_target(target.info)
    return jit_step(spec)


def _place_arguments(spec: StepSpec, lowered: jax.stages.Lowered, arguments: Iterable[ArgumentLeaf]) -> None:
    """Put the arguments of the lowered program into the memory that they live in."""
    kinds = {}
    for leaf in arguments:
        prefix = longest_prefix(leaf.path, spec.memory_kinds)
        if prefix is not None and leaf.parameter_number is not None:
            kinds[leaf.parameter_number] = spec.memory_kinds[prefix]
    if kinds:
        xla_adapter.place_arguments(lowered, kinds)


def _compile(
    lowered: jax.stages.Lowered, options: Mapping[str, str], our_options: Mapping[str, str], dump_folder: Path
) -> jax.stages.Compiled:
    """Compile with a dump. The step's own options win over ours, and one of ours that this XLA has not is left out.

    Raises:
        MemprofError: XLA has no such option, or it does not take that value.
    """
    ours = {name: value for name, value in our_options.items() if name not in options}
    dump = {"xla_dump_to": str(dump_folder), "xla_dump_hlo_as_proto": True}
    while True:
        try:
            return lowered.compile(compiler_options={**ours, **options, **dump})
        except Exception as error:  # XLA's own errors have no common type
            unknown = next((name for name in ours if xla_adapter.rejected_option(error, [name])), None)
            if unknown is not None:
                del ours[unknown]
                continue
            reason = xla_adapter.rejected_option(error, options)
            if reason is None:
                raise
            raise MemprofError(f"XLA does not accept an option of this step: {reason}") from error


def _totals(compiled: jax.stages.Compiled, target: TargetInfo) -> CompilerTotals:
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


def _read_dump(folder: Path) -> bytes:
    programs = list(folder.glob("*_after_optimizations.hlo.pb"))
    if len(programs) != 1:
        raise InternalError(
            f"XLA wrote {len(programs)} optimized programs where one was expected; if XLA_FLAGS sets --xla_dump_...,"
            " unset it and try again"
        )
    return programs[0].read_bytes()
