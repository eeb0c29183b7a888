"""Conservation checks: the replayed buffer assignment must match the compiler's totals, byte for byte.

A difference means a defect of memprof, or an XLA version that it does not understand yet. Then no report is better than
a wrong one, so a difference is an error.

On a GPU, the compiler's own totals show whether a program and its heap traces are complete. On a CPU, its peak excludes
the temporaries, so a missing or changed trace would go unnoticed. Therefore the capture records the totals of its own
replay, and every analysis compares its totals with these.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence

from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.decoded import decode
from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.hlo.liveness import Liveness, replay
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_checks import check_sizes
from memprof.analysis.memory.accounting import Memory
from memprof.analysis.records.capture import Capture, CompilerTotals, ReplayTotals
from memprof.analysis.records.device_family import family_of
from memprof.errors import InternalError

_KEY = "key<"  # arrays of random keys, which are integers in the compiled program


def check_totals(capture: Capture, table: BufferTable, traces: Sequence[Liveness], memory: Memory) -> None:
    """Compare the replay with the compiler's own totals.

    Args:
        traces: all of the table's heap traces, replayed.

    Raises:
        InternalError: they differ; the message names both numbers.
    """
    check_allocations(capture.compiler, table, platform=capture.target.platform)
    if capture.compiler.peak_memory_bytes is not None:
        _equal("the live peak", _peak_as_compiled(table, traces, memory), capture.compiler.peak_memory_bytes)
    if memory.live_peak_bytes > memory.footprint_bytes:
        raise InternalError(
            f"the live peak ({memory.live_peak_bytes:,}) exceeds the footprint ({memory.footprint_bytes:,})"
        )
    at_peak = sum(buffer.size_bytes for buffer in memory.at_peak)
    _equal("the sum of the buffers at the peak", at_peak, memory.live_peak_bytes)
    if capture.replay is not None:
        _check_replay(_totals(table, traces), capture.replay)


def check_shapes(capture: Capture, program: Program, table: BufferTable) -> None:
    """Compare sizes with shapes, and the arguments of the capture with the parameters of its program.

    Raises:
        InternalError: they disagree; the message names both.
    """
    if not family_of(capture.target.platform).pads_arrays:
        check_sizes(program, ((b.instruction, b.shape_index, b.size_bytes) for b in table.logical_buffers.values()))
    shapes = {
        program.instructions[index].parameter_number: program.instructions[index].shape
        for index in program.entry.parameters
    }
    has_parts = capture.target.topology.num_devices > 1
    for leaf in capture.arguments:
        shape = shapes.get(leaf.parameter_number) if leaf.parameter_number is not None else None
        if shape is None or len(shape.leaves) != 1 or leaf.dtype.startswith(_KEY):
            continue
        device_shape = shape.leaves[0].dimensions
        is_part = len(device_shape) == len(leaf.shape) and all(map(operator.le, device_shape, leaf.shape))
        if device_shape != leaf.shape and not (has_parts and is_part):
            raise InternalError(
                f"the argument {leaf.path} has the shape {leaf.shape}, but its parameter {device_shape}; the capture is"
                " damaged"
            )


def check_allocations(totals: CompilerTotals, table: BufferTable, *, platform: str) -> None:
    """Compare the allocations with the compiler's totals, which needs no program.

    Raises:
        InternalError: they differ; the message names both numbers.
    """
    allocations = table.device_allocations
    arguments = sum(a.size_bytes for a in allocations if a.parameter_number is not None)
    _equal("the bytes of the arguments", arguments, totals.argument_bytes)
    outputs = sum(a.size_bytes for a in allocations if a.is_live_out and a.parameter_number is None)
    _equal("the bytes of the outputs", outputs, totals.output_bytes - totals.alias_bytes)
    if family_of(platform).has_temp_total or not totals.is_complete:
        temps = sum(a.size_bytes for a in allocations if a.is_temp)
        _equal("the bytes of the temp block", temps, totals.temp_bytes)


def check_memory_spaces(table: BufferTable, space_bytes: Mapping[int, int]) -> None:
    """Compare the allocations of each memory space with XLA's own report of them.

    Args:
        space_bytes: bytes by color.

    Raises:
        InternalError: they differ; the message names both numbers.
    """
    for color, size_bytes in space_bytes.items():
        held = sum(allocation.size_bytes for allocation in table.allocations if allocation.color == color)
        _equal(f"the bytes of memory space {color}", held, size_bytes)


def plan_totals(table: BufferTable, *, platform: str) -> CompilerTotals:
    """Compute from a plan alone what `memory_analysis()` reports after the full compile.

    `tests/integration/test_plan.py` compares the two.

    Args:
        platform: the target's platform. A CPU has no peak, as in `CompilerTotals`.

    Raises:
        InternalError: a trace cannot be replayed.
    """
    allocations = table.device_allocations
    results = [allocation for allocation in allocations if allocation.is_live_out]
    lasting = (a.size_bytes for a in table.allocations if not (a.is_thread_local or a.is_temp))
    # If there are several traces, in any memory, XLA uses the highest peak.
    traced_bytes = max((replay(trace, table).peak_bytes for trace in table.traces), default=0)
    return CompilerTotals(
        argument_bytes=sum(a.size_bytes for a in allocations if a.parameter_number is not None),
        output_bytes=sum(a.size_bytes for a in results),
        alias_bytes=sum(a.size_bytes for a in results if a.parameter_number is not None),
        temp_bytes=sum(a.size_bytes for a in allocations if a.is_temp),
        peak_memory_bytes=sum(lasting) + traced_bytes if family_of(platform).has_peak else None,
        total_allocation_bytes=sum(a.size_bytes for a in allocations),
        is_complete=False,
    )


def replay_totals(hlo_proto: bytes, platform: str) -> ReplayTotals:
    """Return the totals of a serialized program.

    Args:
        platform: the platform of its device.

    Raises:
        MemprofError: it cannot be read.
        InternalError: it is inconsistent.
    """
    return totals_of(decode(parse_proto(hlo_proto), platform).table)


def totals_of(table: BufferTable) -> ReplayTotals:
    """Return the totals of a buffer assignment over all its traces, including traces outside the device's memory.

    Raises:
        InternalError: a trace cannot be replayed.
    """
    return _totals(table, [replay(trace, table) for trace in table.traces])


def _totals(table: BufferTable, traces: Sequence[Liveness]) -> ReplayTotals:
    return ReplayTotals(
        footprint_bytes=table.footprint_bytes,
        peak_bytes=sum(liveness.peak_bytes for liveness in traces),
        num_events=sum(len(trace.events) for trace in table.traces),
        byte_events=sum(span.size_bytes * (span.end - span.start) for liveness in traces for span in liveness.spans),
    )


def _check_replay(found: ReplayTotals, recorded: ReplayTotals) -> None:
    """Compare the replay with the one recorded in the capture: on a CPU, the only check that a trace is complete."""
    for field in dataclasses.fields(ReplayTotals):
        here, there = getattr(found, field.name), getattr(recorded, field.name)
        if here != there:
            raise InternalError(
                f"replaying the heap traces gives another total ({field.name} {here:,}) than when the capture was "
                f"made ({there:,})"
            )


def _peak_as_compiled(table: BufferTable, traces: Sequence[Liveness], memory: Memory) -> int:
    """Convert our peak to the compiler's definition.

    The compiler's peak also includes arguments and results in host memory. If there are several traces, in any memory,
    it uses only the highest one. So it uses the host's trace if the host holds more temporaries than the device. Of two
    kinds of device memory, which we add up, it omits one.

    Raises:
        InternalError: our sum is less than the peak of one kind of device memory, or more than the sum of all peaks.
    """
    device = {allocation.index for allocation in table.device_allocations}
    temp_bytes = memory.live_peak_bytes - sum(buffer.size_bytes for buffer in memory.indefinite)
    of_device = [liveness.peak_bytes for liveness in traces if liveness.trace.allocation in device]
    if len(of_device) > 1 and not max(of_device) <= temp_bytes <= sum(of_device):
        raise InternalError(
            f"the temporaries at the peak ({temp_bytes:,}) do not match the traces of the device's memory"
            f" ({', '.join(format(each, ',') for each in of_device)})"
        )
    others = (liveness.peak_bytes for liveness in traces if liveness.trace.allocation not in device)
    highest = max(*others, temp_bytes if len(of_device) < 2 else max(of_device), 0)
    on_host = sum(a.size_bytes for a in table.allocations if not (a.is_thread_local or a.is_temp or a.is_on_device))
    return memory.live_peak_bytes - temp_bytes + highest + on_host


def _equal(what: str, replayed_bytes: int, compiler_bytes: int) -> None:
    if replayed_bytes != compiler_bytes:
        raise InternalError(
            f"{what} in the buffer assignment ({replayed_bytes:,}) differs from the compiler's total"
            f" ({compiler_bytes:,}); the capture is damaged, or this version of XLA is not supported yet"
        )
