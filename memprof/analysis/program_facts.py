"""What the compiled program does, apart from where its memory lies: evidence that a technique took effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from memprof.analysis.buffer_table import BufferTable
from memprof.analysis.categories import Phase
from memprof.analysis.op_names import Named, named_phase, scope_parts
from memprof.analysis.program import Program
from memprof.analysis.report import Loop, ProgramFacts, ScopedOperations
from memprof.analysis.values import Values

# XLA's memory space of the host (xla/layout.h, Layout::kHostMemorySpace).
_HOST_COLOR = 5
_PHASES = {Named.FORWARD: Phase.FORWARD, Named.RECOMPUTE: Phase.RECOMPUTE, Named.BACKWARD: Phase.BACKWARD}


def program_facts(program: Program, table: BufferTable, values: Values, *, backward_end: int = -1) -> ProgramFacts:
    """Look through the whole program, fused operations included."""
    loops = []
    num_by_name: Counter[str] = Counter()
    library_calls: Counter[str] = Counter()
    for index in values.order:
        instruction = program.instructions[index]
        num_by_name[instruction.op_name] += 1
        if instruction.opcode == "custom-call":
            library_calls[instruction.custom_call_target] += 1
        if instruction.opcode == "while":
            phase = _PHASES.get(named_phase(instruction.op_name), Phase.NONE)
            loops.append(Loop(op=instruction.op_name, phase=phase, trip_count=instruction.trip_count))
    operations = _by_scope(num_by_name)
    return ProgramFacts(
        num_recomputed_operations=sum(o.num_operations for o in operations if o.phase is Phase.RECOMPUTE),
        loops=tuple(loops),
        host_bytes=sum(a.size_bytes for a in table.allocations if a.color == _HOST_COLOR and not a.is_thread_local),
        operations=operations,
        library_calls=dict(sorted(library_calls.items())),
        backward_end=backward_end,
    )


def _by_scope(num_by_name: Mapping[str, int]) -> tuple[ScopedOperations, ...]:
    counts: Counter[tuple[str, Phase]] = Counter()
    for op_name, number in num_by_name.items():
        if op_name:
            counts["/".join(scope_parts(op_name)), _PHASES.get(named_phase(op_name), Phase.NONE)] += number
    return tuple(
        ScopedOperations(scope=scope, phase=phase, num_operations=number)
        for (scope, phase), number in sorted(counts.items())
    )
