"""What makes data in a program: its operations, definitions before uses.

What only passes values on is none (see `aliases.py`), nor are constants inside fusions and what is spread out from them
there: they are a fifth to a third of what makes data, no argument reaches them, and they hold no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from memprof.analysis.attribution.aliases import ALIASING, AliasSets
from memprof.analysis.attribution.op_names import Named, named_phases
from memprof.analysis.hlo.program import COLLECTIVES, Instruction, Program

SPREADS_OUT = frozenset({"broadcast", "iota", "constant"})

# Operations that bring data of other devices here as it is; what an `all-reduce` or a `reduce-scatter` adds up is new.
_FETCHING = frozenset(
    {"all-gather", "all-gather-start", "collective-permute", "collective-permute-start", "all-to-all"}
    | {"ragged-all-to-all", "collective-broadcast"}
)

# Operations that put the same data elsewhere, in another order, or a part of it, and the operand that holds the data.
_MOVED_OPERAND = {
    "copy": 0, "copy-start": 0, "transpose": 0, "reshape": 0, "reverse": 0, "slice": 0, "dynamic-slice": 0,
    "dynamic-update-slice": 1,
}  # fmt: skip


class Operation(Struct, frozen=True, gc=False):
    """One instruction that makes data: the groups it reads (by operand) and writes, and what its op name shows."""

    index: int
    named: Named
    moved: int | None  # the group of the data that it only puts elsewhere
    choice: int | None  # the group that says which elements of the others it takes
    is_fetched: bool  # it brings data of other devices here as they are
    inputs: tuple[tuple[int, int], ...]  # (operand number, group)
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What makes data in a program.

    Attributes:
        in_order: definitions before uses.
        phase_of_name: the phase that each op name of theirs shows.
        constants: the groups that are made of constants alone and exist inside a fusion only, with the instruction that
            makes each: they are no operations.
    """

    in_order: Sequence[Operation]
    phase_of_name: Mapping[str, Named]
    constants: Mapping[int, int]


def find_operations(program: Program, groups: AliasSets) -> Operations:
    """Look through a whole program."""
    operations: list[Operation] = []
    phase_of_name = named_phases({program.instructions[index].op_name for index in groups.order})
    constants: dict[int, int] = {}
    instructions, results, in_memory = program.instructions, groups.results, groups.in_memory
    for index in groups.order:
        instruction = instructions[index]
        opcode = instruction.opcode
        if opcode in ALIASING:
            continue
        operands, outputs = instruction.operands, results[index]
        if opcode in SPREADS_OUT and in_memory.isdisjoint(outputs):
            read = [group for operand in operands for group in results[operand]]
            if all(map(constants.__contains__, read)):
                for group in outputs:
                    constants[group] = index
                continue
        inputs = [(number, group) for number, operand in enumerate(operands) for group in results[operand]]
        is_fetched = opcode in _FETCHING
        op_name = instruction.op_name
        if opcode in COLLECTIVES and instruction.is_combined:
            operations += _separated(instruction, index, results, is_fetched)
            continue
        named = phase_of_name[op_name]
        moved = choice = None
        if opcode in _MOVED_OPERAND:
            moved = next((group for number, group in inputs if number == _MOVED_OPERAND[opcode]), None)
        elif opcode == "select":
            choice = next((group for number, group in inputs if number == 0), None)
        operations.append(Operation(index, named, moved, choice, is_fetched, tuple(inputs), outputs))
    return Operations(in_order=operations, phase_of_name=phase_of_name, constants=constants)


def _separated(
    instruction: Instruction, index: int, results: Sequence[tuple[int, ...]], is_fetched: bool
) -> Iterator[Operation]:
    """The collectives that have been combined, each on its own: as what the compiler inserts, without a name."""
    count = len(instruction.operands)
    for number, operand in enumerate(instruction.operands):
        inputs = tuple((number, group) for group in results[operand])
        yield Operation(index, Named.NOTHING, None, None, is_fetched, inputs, results[index][number::count])
