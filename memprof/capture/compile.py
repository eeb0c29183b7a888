"""From a step to a capture: trace, lower, compile, and keep what XLA says about memory.

Runs in the child process (see `child.py`), since a compile can kill its process.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from memprof.analysis.capture import ArgumentLeaf, Capture, CompilerTotals, TargetInfo, Timings
from memprof.analysis.categories import Role
from memprof.capture import xla_adapter
from memprof.capture.flops import count_flops
from memprof.capture.step import StepSpec
from memprof.capture.targets.choose import ChosenTarget
from memprof.capture.toolchain import toolchain
from memprof.errors import InternalError, MemprofError

Progress = Callable[[str], None]


def compile_step(spec: StepSpec, target: ChosenTarget, *, dump_folder: Path, progress: Progress) -> Capture:
    """Compile a step for a target, on shapes alone, and capture its buffer assignment.

    Args:
        dump_folder: an empty folder for XLA's dump; left as XLA filled it.
        progress: called with the name of each stage as it begins.

    Raises:
        InternalError: XLA wrote no program.
        Exception: whatever the user's function raises while it is traced.
    """
    if spec.check_target is not None:
        spec.check_target(target.info)
    arguments = _abstract(spec, target)
    jitted = jax.jit(spec.fn, donate_argnums=spec.donate_argnums)
    started = time.perf_counter()
    progress("tracing")
    with jax.default_device(target.device):
        traced = jitted.trace(*arguments)
        progress("lowering")
        lowered = traced.lower()
    _place_arguments(spec, lowered)
    lowered_at = time.perf_counter()
    progress("compiling")
    xla_adapter.disable_compilation_cache()
    compiled = _compile(lowered, spec.compiler_options, dump_folder)
    compiled_at = time.perf_counter()
    flops = count_flops(traced.jaxpr)
    return Capture(
        label=spec.label,
        workload=spec.workload,
        techniques=spec.techniques,
        config=spec.config,
        target=target.info,
        toolchain=toolchain(xla_adapter.cuda_plugin_version()),
        compiler=_totals(compiled, target.info),
        arguments=_argument_leaves(spec, lowered),
        flops=flops.total,
        recomputed_flops=flops.recomputed,
        timings=Timings(lower_seconds=lowered_at - started, compile_seconds=compiled_at - lowered_at),
        hlo_proto=_read_dump(dump_folder),
    )


def _abstract(spec: StepSpec, target: ChosenTarget) -> Any:
    """The arguments as shapes and dtypes on the target, in the memory that they live in."""
    names = _argument_names(spec)

    def leaf(keys: Any, value: Any) -> jax.ShapeDtypeStruct:
        array = value if hasattr(value, "dtype") else jax.numpy.asarray(value)
        kind = _memory_kind(names[keys[0].idx] + jax.tree_util.keystr(keys[1:]), spec)
        sharding = target.sharding
        if kind is not None:
            # A device that is not there lists no memories and forgets the kind: `_place_arguments` says it again.
            sharding = (sharding or jax.sharding.SingleDeviceSharding(target.device)).with_memory_kind(kind)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(leaf, spec.args)


def _place_arguments(spec: StepSpec, lowered: jax.stages.Lowered) -> None:
    """Put the arguments of the lowered program into the memory that they live in."""
    kinds = {}
    for leaf in _argument_leaves(spec, lowered):
        kind = _memory_kind(leaf.path, spec)
        if kind is not None and leaf.parameter_number is not None:
            kinds[leaf.parameter_number] = kind
    if kinds:
        xla_adapter.place_arguments(lowered, kinds)


def _memory_kind(path: str, spec: StepSpec) -> str | None:
    prefix = longest_prefix(path, spec.memory_kinds)
    return None if prefix is None else spec.memory_kinds[prefix]


def _argument_names(spec: StepSpec) -> list[str]:
    return list(inspect.signature(spec.fn).parameters)


def _compile(lowered: jax.stages.Lowered, options: Mapping[str, str], dump_folder: Path) -> jax.stages.Compiled:
    """Compile with a dump.

    Raises:
        MemprofError: XLA has no such option, or it does not take that value.
    """
    try:
        return lowered.compile(
            compiler_options={**options, "xla_dump_to": str(dump_folder), "xla_dump_hlo_as_proto": True}
        )
    except Exception as error:  # XLA's own errors have no common type
        reason = xla_adapter.rejected_option(error, options)
        if reason is None:
            raise
        raise MemprofError(f"XLA does not accept an option of this step: {reason}") from error


def _argument_leaves(spec: StepSpec, lowered: jax.stages.Lowered) -> tuple[ArgumentLeaf, ...]:
    names = _argument_names(spec)
    leaves = []
    for number, argument in enumerate(spec.args):
        for keys, leaf in jax.tree_util.tree_leaves_with_path(argument):
            leaves.append((names[number] + jax.tree_util.keystr(keys), leaf, number in spec.donate_argnums))
    parameter_numbers = {flat: number for number, flat in enumerate(xla_adapter.kept_arguments(lowered, len(leaves)))}
    return tuple(
        ArgumentLeaf(
            path=path,
            role=role_of(path, spec),
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            size_bytes=xla_adapter.argument_bytes(leaf),
            donated=donated,
            parameter_number=parameter_numbers.get(flat),
        )
        for flat, (path, leaf, donated) in enumerate(leaves)
    )


def role_of(path: str, spec: StepSpec) -> Role:
    """The role of the longest prefix in `spec.roles` that ends where a key of `path` ends; else `other_state`."""
    best = longest_prefix(path, spec.roles)
    return Role.OTHER_STATE if best is None else spec.roles[best]


def longest_prefix(path: str, prefixes: Iterable[str]) -> str | None:
    """The longest prefix of `path` that ends where one of its keys ends; None where there is none."""
    return max(
        (
            prefix
            for prefix in prefixes
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", ".", "[")
        ),
        key=len,
        default=None,
    )


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
