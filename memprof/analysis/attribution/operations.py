"""The operations of a program: the instructions that make data, definitions before uses.

Instructions that only pass values on are not operations (see `aliases.py`). Neither are constants inside fusions and
their broadcasts: they are 20 to 33% of all instructions that make data, depend on no argument, and hold no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from memprof.analysis.attribution.aliases import ALIASING, AliasSets
from memprof.analysis.attribution.op_names import Named, named_phases
from memprof.analysis.hlo.program import COLLECTIVES, Instruction, Program

SPREADS_OUT = frozenset({"broadcast", "iota", "constant"})

# Operations that receive unchanged data from other devices; an `all-reduce` or `reduce-scatter` makes new data.
_FETCHING = frozenset(
    {"all-gather", "all-gather-start", "collective-permute", "collective-permute-start", "all-to-all"}
    | {"ragged-all-to-all", "collective-broadcast"}
)

# Operations that move, reorder or slice data, and the operand that holds the data.
_MOVED_OPERAND = {
    "copy": 0, "copy-start": 0, "transpose": 0, "reshape": 0, "reverse": 0, "slice": 0, "dynamic-slice": 0,
    "dynamic-update-slice": 1,
}  # fmt: skip


class Operation(Struct, frozen=True, gc=False):
    """One instruction that makes data: the groups it reads (by operand) and writes, and the phases in its op name."""

    index: int
    named: Named
    moved: int | None  # the group of the data that it only moves
    choice: int | None  # the group that selects elements of the others
    is_fetched: bool  # it receives unchanged data from other devices
    inputs: tuple[tuple[int, int], ...]  # (operand number, group)
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations of a program.

    Attributes:
        in_order: definitions before uses.
        phase_of_name: the phase that each of their op names shows.
        constants: groups made from constants inside a fusion, with the instruction that makes each; these are not
            operations.
    """

    in_order: Sequence[Operation]
    phase_of_name: Mapping[str, Named]
    constants: Mapping[int, int]


def find_operations(program: Program, groups: AliasSets) -> Operations:
    """Find the operations of a program."""
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
            choice = inputs[0][1] if inputs else None
        operations.append(Operation(index, named, moved, choice, is_fetched, tuple(inputs), outputs))
    return Operations(in_order=operations, phase_of_name=phase_of_name, constants=constants)


def _separated(
    instruction: Instruction, index: int, results: Sequence[tuple[int, ...]], is_fetched: bool
) -> Iterator[Operation]:
    """Yield the parts of a combined collective separately, without a name, as instructions of the compiler."""
    count = len(instruction.operands)
    for number, operand in enumerate(instruction.operands):
        inputs = tuple((number, group) for group in results[operand])
        yield Operation(index, Named.NOTHING, None, None, is_fetched, inputs, results[index][number::count])
