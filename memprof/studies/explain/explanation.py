"""What a run asked for when its memory was out; with its program, the buffer itself.

The log names operations and sizes. Which phase and scope that is, their JAX names tell; what a buffer is for, the
program tells: where it is at hand, what was asked for is looked up among its allocations by size, and what XLA lists by
size, shape and operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from memprof.analysis.attribution.op_names import Named, named_phase, plain_scopes
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.studies.explain.records import ListedBuffer, Moment, OutOfMemory

_PHASES = {Named.FORWARD: Phase.FORWARD, Named.RECOMPUTE: Phase.RECOMPUTE, Named.BACKWARD: Phase.BACKWARD}
_ROUNDED = 0.005  # XLA's lists have three or four digits
_BLOCK_BYTES = 256  # the allocator's: what it is asked for may be rounded up to it


class AskedFor(StrEnum):
    """What could not be had."""

    PROGRAM = "program"  # all that the compiler gave it
    LOADED_PROGRAM = "loaded_program"  # the program and its temporary values
    TEMP_BLOCK = "temp_block"
    RESULTS = "results"
    BUFFER = "buffer"  # one of the program's, outside of its temp block
    ARRAY = "array"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBuffer:
    """A buffer of XLA's list.

    Attributes:
        phase, scopes: those of its operation, by its name.
        buffer: the same in the program; None where there is no program, or none such in it.
    """

    listed: ListedBuffer
    phase: Phase
    scopes: str
    buffer: LiveBuffer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a log says, explained.

    Attributes:
        free_bytes: what was free, by the message or by the allocator's dump; None where neither tells.
        capacity_bytes: how much there is for everything, likewise.
        listed: the buffers that XLA lists.
        num_programs: how many were looked through.
        program: the report of the one that asked for it; None where none of them did.
        asked: what it is in that program: one buffer, or what lies in its temp block at the peak, largest first.
    """

    log: OutOfMemory
    asked_for: AskedFor
    free_bytes: int | None
    capacity_bytes: int | None
    listed: tuple[ExplainedBuffer, ...]
    num_programs: int
    program: Report | None
    asked: tuple[LiveBuffer, ...]


def explain(log: OutOfMemory, programs: Sequence[Report]) -> Explanation:
    """Explain a log, with the programs that may have been running."""
    asked_for, program, asked = _in_programs(log, programs)
    buffers = [each for report in programs for each in (*report.buffers, *report.temp_buffers)]
    pool = log.pool
    free_bytes, capacity_bytes = log.free_bytes, log.capacity_bytes
    if pool is not None:
        capacity_bytes = pool.limit_bytes
        has_both = pool.limit_bytes is not None and pool.in_use_bytes is not None
        free_bytes = (pool.limit_bytes or 0) - (pool.in_use_bytes or 0) if has_both else pool.free_bytes
    return Explanation(
        log=log,
        asked_for=asked_for,
        free_bytes=free_bytes,
        capacity_bytes=capacity_bytes,
        listed=tuple(_explained(each, buffers) for each in log.buffers),
        num_programs=len(programs),
        program=program,
        asked=asked,
    )


def _in_programs(
    log: OutOfMemory, programs: Sequence[Report]
) -> tuple[AskedFor, Report | None, tuple[LiveBuffer, ...]]:
    """What was asked for, and the program one of whose allocations it is."""
    for report in programs:
        if _is_asked(report.compiler.temp_bytes, log):
            return AskedFor.TEMP_BLOCK, report, tuple(each for each in report.buffers if each.offset is not None)
        for buffer in report.buffers:
            if buffer.offset is None and _is_asked(buffer.size_bytes, log):
                return AskedFor.BUFFER, report, (buffer,)
        if log.when is not Moment.RUNNING and _is_near(report.footprint_bytes, log.asked_bytes):
            return AskedFor.PROGRAM, report, report.buffers
    return _by_log(log), None, ()


def _by_log(log: OutOfMemory) -> AskedFor:
    if log.when is not Moment.RUNNING:
        return AskedFor.PROGRAM if log.when is Moment.COMPILING else AskedFor.LOADED_PROGRAM
    if _is_near(log.parts.get("preallocated temp allocation", -1), log.asked_bytes):
        return AskedFor.TEMP_BLOCK
    if _is_near(log.parts.get("maybe_live_out allocation", -1), log.asked_bytes):
        return AskedFor.RESULTS
    return AskedFor.ARRAY if log.device == "TPU" else AskedFor.UNKNOWN


def _is_asked(size_bytes: int, log: OutOfMemory) -> bool:
    """Whether an allocation of that size is what was asked for: exactly, or rounded as the log rounds it."""
    asked = log.asked_bytes or 0
    return bool(size_bytes) and (
        0 <= asked - size_bytes < _BLOCK_BYTES or (log.is_rounded and _is_near(size_bytes, asked))
    )


def _is_near(size_bytes: int, other: int | None) -> bool:
    return other is not None and abs(size_bytes - other) <= _ROUNDED * other


def _explained(listed: ListedBuffer, buffers: Sequence[LiveBuffer]) -> ExplainedBuffer:
    found = next((buffer for buffer in buffers if _is_same(listed, buffer)), None)
    phase = Phase.ARGUMENT if listed.kind == "argument" else _PHASES.get(named_phase(listed.op), Phase.NONE)
    return ExplainedBuffer(listed=listed, phase=phase, scopes="/".join(plain_scopes(listed.op)), buffer=found)


def _is_same(listed: ListedBuffer, buffer: LiveBuffer) -> bool:
    array = array_type(buffer.dtype, buffer.shape)
    has_name = not (listed.op or listed.label) or listed.op == buffer.op or listed.label.lstrip("%") == buffer.name
    return array == listed.array and has_name and _is_near(buffer.size_bytes, listed.size_bytes)
