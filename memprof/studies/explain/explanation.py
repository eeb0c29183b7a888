"""Explain which allocation failed when a run ran out of memory, and with its program, which buffer it was.

The log names operations and sizes. The phase and the scope come from the JAX names of the operations; the purpose of a
buffer comes from the program. If the program is available, the failed allocation is looked up among the program's
allocations by size, and XLA's listed buffers by size, shape and operation.
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
_ROUNDED = 0.005  # XLA's lists show three or four digits
_BLOCK_BYTES = 256  # of the allocator: it may round a request up to a multiple


class AskedFor(StrEnum):
    """The kind of the failed allocation."""

    PROGRAM = "program"  # everything that the compiler allocated for it
    LOADED_PROGRAM = "loaded_program"  # the program and its temporary values
    TEMP_BLOCK = "temp_block"
    RESULTS = "results"
    BUFFER = "buffer"  # a buffer of the program outside its temp block
    ARRAY = "array"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBuffer:
    """A buffer of XLA's list.

    Attributes:
        phase, scopes: phase and scopes in the name of its operation.
        buffer: the same buffer in the program; None without a program, or if the program has no such buffer.
    """

    listed: ListedBuffer
    phase: Phase
    scopes: str
    buffer: LiveBuffer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a log.

    Attributes:
        free_bytes: free memory, from the message or the allocator's dump; None if neither shows it.
        capacity_bytes: total memory, from the same sources.
        listed: the buffers that XLA lists.
        num_programs: number of programs that were searched.
        program: the report of the program with the failed allocation; None if no program has it.
        asked: that allocation in the program: one buffer, or the content of its temp block at the peak, largest first.
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
    """Explain a log, given the programs that may have been running."""
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
    """Return the kind of the failed allocation, its program, and the program's buffers in it."""
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
    """Whether an allocation of that size is the failed one: equal, or equal when rounded like the log."""
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
