"""Memory pressure: the values that XLA recomputes by itself because the device is too small for the step.

XLA plans for JAX's pool: jaxlib passes the allocator's limit to the compiler (`device_memory_size`). Without such a
pool, XLA plans for a share of the device's memory. If the plan needs more, XLA recomputes values, and the plan then
describes the card more than the step. So verdicts and advice use a second plan, compiled from the same program
without a limit. The TPU compiler uses the memory size of each chip, which cannot be changed, so a TPU has no second
plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from memprof.analysis.attribution.aliases import runs
from memprof.analysis.hlo.products import Dot
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.hlo.rematerialization import is_rematerialized
from memprof.analysis.memory.verdict import pool_bytes_of
from memprof.analysis.records.capture import MAX_OPERATIONS, Target
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.pool import PoolSettings
from memprof.analysis.records.pressure import Pressure
from memprof.errors import InternalError

# XLA clones neither calls nor instructions with effects, but a user's kernel may have the name of a clone.
_NEVER_CLONED = frozenset({"call", "conditional", "constant", "custom-call", "parameter", "while"})
# These only refer to parts of other values.
_NO_VALUES = frozenset({"bitcast", "get-tuple-element", "tuple"})


def memory_limit(target: Target, settings: PoolSettings) -> int:
    """Return the size of the pool for which XLA plans, in bytes; 0 if it plans for its own share of the memory."""
    if not family_of(target.platform).has_share_pool or not settings.allocator.is_capped:
        return 0
    return pool_bytes_of(target, settings) or 0


def find_pressure(
    program: Program, target: Target, settings: PoolSettings, without_limit: Program | None
) -> Pressure | None:
    """Find the values that XLA recomputes in a program.

    Args:
        target: the device for which it was compiled.
        settings: those of JAX's pool when it was compiled.
        without_limit: the same program, compiled without a memory limit; None if it was not compiled. A clone that
            occurs in both programs is not due to the limit.

    Returns:
        The record, without the footprint of `without_limit`; None if XLA recomputes no values by itself.
    """
    known = set() if without_limit is None else {instruction.name for instruction in without_limit.instructions}
    found = [
        (instruction, times)
        for instruction, times, _ in runs(program)
        if is_rematerialized(instruction.name)
        and instruction.opcode not in _NEVER_CLONED | _NO_VALUES
        and instruction.name not in known
    ]
    if not found:
        return None
    flops = sum(times * _flops(program, instruction) for instruction, times in found)
    if flops > MAX_OPERATIONS:
        raise InternalError("the program recomputes more operations than any step has")
    limit_bytes, percent = memory_limit(target, settings), family_of(target.platform).planned_percent
    own_bytes = None if target.usable_bytes is None else target.usable_bytes * percent // 100
    return Pressure(
        planned_bytes=limit_bytes or own_bytes,
        recomputed_values=len(found),
        recomputed_flops=flops,
        footprint_without_limit_bytes=None,
        planned_for="JAX's pool" if limit_bytes else f"{percent}% of the card",
    )


def _flops(program: Program, instruction: Instruction) -> int:
    """Return the FLOPs of the matrix products in an instruction."""
    return sum(_flops_of_dot(program, each) for each in _with_fused(program, instruction) if each.opcode == "dot")


def _with_fused(program: Program, instruction: Instruction) -> Iterator[Instruction]:
    yield instruction
    for called in instruction.called:
        for index in program.computations[called].instructions:
            yield from _with_fused(program, program.instructions[index])


def _flops_of_dot(program: Program, dot: Instruction) -> int:
    (result,), (left, *_) = dot.shape.leaves, program.instructions[dot.operands[0]].shape.leaves
    contracting = dot.product.contracting if isinstance(dot.product, Dot) else ()
    return 2 * prod(result.dimensions) * prod(left.dimensions[number] for number in contracting)
