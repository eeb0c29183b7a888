"""The operations that took time in a trace, joined with what the program tells of them: module, phase, memory.

A trace names operations as the compiled program does, so the join is by name. A name that the program lacks (the trace
of a helper program, or of another version) stays in the list, without module and memory, rather than vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memprof.analysis.categories import Category, Phase
from memprof.analysis.holdings import Holding
from memprof.analysis.measurement import OpTime
from memprof.analysis.program import Program
from memprof.analysis.values import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """One operation of the compiled program, over all traced steps.

    Attributes:
        name: of the HLO instruction.
        op: JAX's name of it; empty where there is none.
        contains_others: it is a loop, a branch or a call: its time is that of operations which are in the list too.
        category: of the largest piece of memory that its result takes; None where it takes none of its own.
        held_bytes: all memory that its result takes.
    """

    name: str
    op: str
    seconds: float
    num_calls: int
    contains_others: bool
    phase: Phase
    module: str
    category: Category | None
    held_bytes: int


def op_costs(
    op_times: Sequence[OpTime], program: Program, values: Values, holdings: Iterable[Holding]
) -> tuple[OpCost, ...]:
    """Join times with the program, in the order of the times."""
    if not op_times:
        return ()
    wanted = {op.name for op in op_times}
    instructions = {each.name: each for each in program.instructions if each.name in wanted}
    # An operation in a loop holds its piece once, however often the trace of the heap tells of it.
    held: dict[str, dict[tuple[tuple[int, ...], int | None], Holding]] = {}
    for holding in holdings:
        if holding.value.name in wanted:
            held.setdefault(holding.value.name, {})[holding.value.element, holding.offset] = holding
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
                category=largest.claim.category if largest else None,
                held_bytes=sum(piece.size_bytes for piece in pieces),
            )
        )
    return tuple(costs)
