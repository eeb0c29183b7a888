"""Conversion of a program compiled elsewhere to a capture, from the program alone.

Such a program lacks other parts of memprof's own captures: the traced step with its operation counts, and the tools'
versions. The capture takes these from the program or leaves them empty; it never invents a value.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.decoded import Decoded, FreshCapture, decode
from memprof.analysis.hlo.hlo_proto import parse_memory_report, parse_proto
from memprof.analysis.hlo.liveness import replay
from memprof.analysis.memory.checks import check_memory_spaces, plan_totals, totals_of
from memprof.analysis.records.capture import Capture, Target, Timings, Toolchain, Topology
from memprof.analysis.records.device_family import all_families, family_of
from memprof.errors import MemprofError, as_damage
from memprof.sources.dumps.dumps import AS_PROTO, FoundProgram
from memprof.sources.jax.roles.by_program import arguments_of_program
from memprof.sources.jax.targets.families import target_family
from memprof.sources.jax.targets.family import TargetFamily
from memprof.sources.jax.targets.resolve import CPU, cpu
from memprof.sources.jax.xla.kernels import known_kernels
from memprof.sources.pool_settings import pool_settings
from memprof.version import __version__

_NAMED = "the dump names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The memory of a program on each device.

    Attributes:
        target: the target of its compile, as far as the program shows it.
        footprint_bytes, live_peak_bytes: as in a report.
    """

    target: Target
    footprint_bytes: int
    live_peak_bytes: int


def sizes_of(found: FoundProgram) -> Sizes:
    """Return the memory of a program, without analyzing the purpose of its buffers.

    Raises:
        MemprofError: see `import_program`.
    """
    with as_damage(str(found.file)):
        return _sizes(found)


def _sizes(found: FoundProgram) -> Sizes:
    proto, decoded = _decoded(found)
    table = decoded.table
    device = {allocation.index: allocation for allocation in table.device_allocations}
    peaks = {each.allocation: replay(each, table).peak_bytes for each in table.traces if each.allocation in device}
    rest = sum(allocation.size_bytes for index, allocation in device.items() if index not in peaks)
    return Sizes(
        target=_target(found, proto), footprint_bytes=table.footprint_bytes, live_peak_bytes=rest + sum(peaks.values())
    )


def import_program(found: FoundProgram, *, roles: Mapping[str, str], target: Target | None) -> FreshCapture:
    """Return the capture of a program.

    Args:
        roles: roles that the user gives, by path prefix.
        target: the target of the compile, if the user gives it; None to take it from the dump.

    Raises:
        MemprofError: the file is not a program with a buffer assignment, is damaged, or is a text dump of a TPU
            program; or a role is unknown or given for a missing argument.
    """
    with as_damage(str(found.file)):
        return _capture(found, roles, target)


def _capture(found: FoundProgram, roles: Mapping[str, str], target: Target | None) -> FreshCapture:
    proto, decoded = _decoded(found)
    other = None
    if found.proto_without_limit:
        other = decode(parse_proto(found.proto_without_limit), _platform(found))
    own = _target(found, proto)
    target = own if target is None else replace(target, topology=own.topology)
    arguments, doubts = arguments_of_program(decoded.program, decoded.table, roles)
    if own.topology.num_devices > 1:
        doubts = (
            *doubts,
            f"It is compiled for {own.topology.num_devices} devices; shapes and sizes are those of one device.",
        )
    kernels, unread = known_kernels(found.hlo_proto, target)
    capture = Capture(
        label=found.name,
        workload=found.name,
        techniques=(),
        config={"imported_from": str(found.file), "written": time.strftime("%F %T", time.localtime(found.written))},
        target=replace(target, compiler_config=""),
        toolchain=Toolchain(
            memprof=__version__, python="", jax="", jaxlib="", cuda_plugin=None, flax=None, optax=None, xla_flags=""
        ),
        compiler=plan_totals(decoded.table, platform=target.platform),
        arguments=arguments,
        doubts=(*doubts, *unread),
        kernels=kernels,
        flops=0,
        recomputed_flops=0,
        timings=Timings(lower_seconds=0.0, compile_seconds=0.0),
        hlo_proto=found.hlo_proto,
        proto_without_limit=found.proto_without_limit,
        replay=totals_of(decoded.table),
        replay_without_limit=None if other is None else totals_of(other.table),
        file=str(found.file),
        pool=pool_settings(target),
    )
    return FreshCapture(capture=capture, decoded=replace(decoded, without_limit=other))


def _decoded(found: FoundProgram) -> tuple[Any, Decoded]:
    family = family_of(_platform(found))
    if family.pads_arrays and found.is_text:
        raise MemprofError(
            f"{found.file} is the text of a program for a {family.device}, which lacks the memory spaces of its"
            f" buffers: {AS_PROTO}"
        )
    if found.damage:
        raise found.damage
    try:
        proto = parse_proto(found.hlo_proto)
        if not proto.HasField("hlo_module") or not proto.hlo_module.computations:
            raise MemprofError(f"{found.file} is not a compiled program (xla.HloProto)")
        if not proto.HasField("buffer_assignment"):
            raise MemprofError(
                f"{found.file} contains a program without its buffer assignment, so its memory is unknown: use the "
                "program after optimizations (*after_optimizations.hlo.pb)"
            )
        decoded = decode(proto, family.platform)
    except MemprofError as error:
        if str(found.file) in str(error):
            raise
        raise MemprofError(
            f"{found.file} cannot be read: it is truncated, damaged, or not a compiled program"
        ) from error
    _check_memory_report(found, decoded.table)
    return proto, decoded


def _check_memory_report(found: FoundProgram, table: BufferTable) -> None:
    """Compare the buffer assignment with the memory report beside it, if the dump has one."""
    if not found.memory_report:
        return
    try:
        check_memory_spaces(table, parse_memory_report(found.memory_report))
    except MemprofError as error:
        raise MemprofError(
            f"{found.file} and the memory report beside it disagree ({str(error).partition(';')[0]}): one of the two is"
            " damaged; make the dump again, or remove the report"
        ) from error


def _platform(found: FoundProgram) -> str:
    marked = (each.platform for each in all_families() if each.mark and each.mark in found.hlo_proto)
    return found.platform or next(marked, CPU)


def _target(found: FoundProgram, proto: Any) -> Target:
    assigned = proto.hlo_module.device_assignment
    topology = Topology(num_devices=max(1, assigned.replica_count * assigned.computation_count))
    family = target_family(_platform(found))
    if family.facts.is_host:
        return replace(cpu(_NAMED if found.platform else "it names no other device"), topology=topology)
    if found.target_config is not None and family.read_file is not None:
        return _named_device(family, found.target_config, topology)
    word = family.facts.device
    return Target(
        name=word.lower(),
        description=f"a {word} that the dump does not name",
        platform=family.facts.platform,
        memory_bytes=None,
        compute_capability=found.compute_capability,
        reason="give it with --target",
        topology=topology,
    )


def _named_device(family: TargetFamily, config: Path, topology: Topology) -> Target:
    """Return the device in a configuration of XLA's dump: from memprof's catalogue, otherwise as it describes it."""
    assert family.read_file is not None
    target = family.read_file(str(config), topology)
    device = family.device_of_kind(target.description)
    if device is not None and device.memory_bytes == target.memory_bytes:
        return device.target(_NAMED, topology)
    name = "-".join(target.description.lower().split()) or family.facts.device.lower()
    return replace(target, name=name, reason=_NAMED)
