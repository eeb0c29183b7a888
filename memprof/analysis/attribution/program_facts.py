"""Facts about the operations of the compiled program, as evidence that a technique took effect, and their run times.

A trace uses the compiled program's names of operations, so both are joined by name. A name that the program lacks (the
trace of a helper program, or of another version) stays in the list, without a module and memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from memprof.analysis.attribution.op_names import BARRIER, Named, around, named_phase, scope_parts
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.program import HOST_MEMORY, Program
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.measurement import OpTime
from memprof.analysis.records.report import Loop, OpCost, ProgramFacts, ScopedOperations

_INFORMATIVE = frozenset({"custom-call", "while"})
_PHASES = {Named.FORWARD: Phase.FORWARD, Named.RECOMPUTE: Phase.RECOMPUTE, Named.BACKWARD: Phase.BACKWARD}


def program_facts(
    program: Program, table: BufferTable, values: Values, *, backward_end: int, has_fenced_values: bool
) -> ProgramFacts:
    """Collect facts about the whole program, including fused operations.

    Args:
        has_fenced_values: whether the step was traced with optimization barriers.
    """
    loops = []
    library_calls: Counter[str] = Counter()
    instructions = [program.instructions[index] for index in values.order]
    for instruction in [each for each in instructions if each.opcode in _INFORMATIVE]:
        if instruction.opcode == "custom-call":
            library_calls[instruction.custom_call_target] += 1
        else:
            phase = _PHASES.get(named_phase(instruction.op_name), Phase.NONE)
            loops.append(Loop(op=instruction.op_name, phase=phase, trip_count=instruction.trip_count))
    names = Counter([instruction.op_name for instruction in instructions])
    operations = _by_scope(names)
    return ProgramFacts(
        num_recomputed_operations=sum(o.num_operations for o in operations if o.phase is Phase.RECOMPUTE),
        loops=tuple(loops),
        host_bytes=sum(a.size_bytes for a in table.allocations if a.color == HOST_MEMORY and not a.is_thread_local),
        operations=operations,
        library_calls=dict(sorted(library_calls.items())),
        has_barriers=has_fenced_values or any(name.endswith(BARRIER) for name in names),
        backward_end=backward_end,
    )


def _by_scope(num_by_name: Mapping[str, int]) -> tuple[ScopedOperations, ...]:
    by_scopes: Counter[tuple[str, Named]] = Counter()  # a tenth as many entries as names
    for op_name, number in num_by_name.items():
        if op_name:
            by_scopes[around(op_name), named_phase(op_name)] += number
    counts: Counter[tuple[str, Phase]] = Counter()
    for (scopes, named), number in by_scopes.items():
        counts["/".join(scope_parts(f"{scopes}/")), _PHASES.get(named, Phase.NONE)] += number
    return tuple(
        ScopedOperations(scope=scope, phase=phase, num_operations=number)
        for (scope, phase), number in sorted(counts.items())
    )


def op_costs(
    op_times: Sequence[OpTime], program: Program, values: Values, buffers: Iterable[LiveBuffer]
) -> tuple[OpCost, ...]:
    """Join run times with the program, in the order of the times."""
    if not op_times:
        return ()
    wanted = {op.name for op in op_times}
    instructions = {each.name: each for each in program.instructions if each.name in wanted}
    # An operation in a loop holds its piece once, even if the heap trace contains it several times.
    held: dict[str, dict[tuple[tuple[int, ...], int | None], LiveBuffer]] = {}
    for buffer in buffers:
        if buffer.name in wanted:
            held.setdefault(buffer.name, {})[buffer.shape_index, buffer.offset] = buffer
    costs = []
    for op in op_times:
        instruction = instructions.get(op.name)
        pieces = list(held.get(op.name, {}).values())
        largest = max(pieces, key=lambda piece: piece.size_bytes, default=None)
        costs.append(
            OpCost(
                name=op.name,
                op=instruction.op_name if instruction else "",
                seconds=op.seconds,
                num_calls=op.num_calls,
                contains_others=instruction is not None and instruction.opcode in ("while", "conditional", "call"),
                phase=values.phase_of(instruction) if instruction else Phase.NONE,
                module=values.module_of(instruction) if instruction else "",
                category=largest.category if largest else None,
                held_bytes=sum(piece.size_bytes for piece in pieces),
            )
        )
    return tuple(costs)
