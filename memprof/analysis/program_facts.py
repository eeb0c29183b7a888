"""What the compiled program does, apart from where its memory lies: evidence that a technique took effect."""

from __future__ import annotations

from memprof.analysis.buffer_table import BufferTable
from memprof.analysis.op_names import Named, named_phase
from memprof.analysis.program import Program
from memprof.analysis.report import Loop, ProgramFacts
from memprof.analysis.values import Values

# XLA's memory space of the host (xla/layout.h, Layout::kHostMemorySpace).
_HOST_COLOR = 5


def program_facts(program: Program, table: BufferTable, values: Values) -> ProgramFacts:
    """Look through the whole program, fused operations included."""
    loops = []
    num_recomputed = 0
    phases: dict[str, Named] = {}
    for index in values.order:
        instruction = program.instructions[index]
        op_name = instruction.op_name
        if op_name not in phases:
            phases[op_name] = named_phase(op_name)
        num_recomputed += phases[op_name] is Named.RECOMPUTE
        if instruction.opcode == "while":
            loops.append(Loop(op=op_name, phase=values.phase_of(instruction), trip_count=instruction.trip_count))
    return ProgramFacts(
        num_recomputed_operations=num_recomputed,
        loops=tuple(loops),
        host_bytes=sum(a.size_bytes for a in table.allocations if a.color == _HOST_COLOR and not a.is_thread_local),
    )
