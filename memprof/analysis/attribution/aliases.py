"""Alias sets: positions of the program that hold the same value.

Many HLO instructions make no data: `get-tuple-element`, `tuple`, `bitcast`, `while`, `call`, `fusion` and others only
pass values on. XLA's dump does not list these aliases, so this module resolves them by union-find over positions:

- an instruction that passes data on aliases its operand;
- the values that one loop carries (initial value, body parameter, body root, loop result) are one set, leaf by leaf;
- `dynamic-update-slice` and `scatter` join the set of their first operand if both lie in the same memory, because they
  then update it in place.

Fusions are transparent: a fusion's operands alias its computation's parameters, and its result aliases the root. So the
rules can examine each operation inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

from memprof.analysis.hlo.buffer_table import BufferTable, LogicalBuffer
from memprof.analysis.hlo.program import Computation, Instruction, Program
from memprof.errors import InternalError

# Instructions with data flow through their called computations. The computations of `reduce`, `sort`, `scatter` and
# similar instructions work on scalars and hold no relevant buffers.
_CALLS = frozenset({"fusion", "call", "async-start"})
_PASSES_OPERAND_ON = frozenset(
    {"bitcast", "optimization-barrier", "add-dependency", "domain", "async-update", "all-reduce-done"}
)
# Instructions that end a background operation, and the element of its tuple that holds the result.
_RESULT_ELEMENT = {"copy-done": 0, "async-done": 1, "all-gather-done": 1, "collective-permute-done": 1}
# Instructions that make no data themselves.
ALIASING = frozenset(
    {"get-tuple-element", "tuple", "while", "conditional", "parameter", *_CALLS, *_PASSES_OPERAND_ON, *_RESULT_ELEMENT}
)
_JOINING = ALIASING - {"parameter"} | {"copy-start"}  # a copy that runs in the background also returns its source
IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})


class AliasSets:
    """The alias sets of one program, numbered from 0. A **group** is the number of an alias set.

    Attributes:
        order: all instructions with data flow, definitions before uses.
        count: the number of groups.
        results: the groups of the leaves of each instruction's result, by its index.
        in_memory: the groups that lie in memory; the others exist inside a fusion only.

    Raises:
        InternalError: an instruction has an unexpected shape.
    """

    def __init__(self, program: Program, table: BufferTable) -> None:
        self._program = program
        self._parent = list(range(program.num_positions))
        self.order = tuple(_flatten(program, program.entry))
        ordered = [program.instructions[index] for index in self.order]
        for instruction in ordered:
            if instruction.opcode not in _JOINING:
                continue
            try:
                for left, right in _aliases(program, instruction):
                    self._union(left, right)
            except (ValueError, IndexError) as error:
                raise InternalError(
                    f"the operand of {instruction.name} ({instruction.opcode}) has another shape than its result; "
                    "this version of XLA is not supported yet"
                ) from error
        found = [(buffer, _position_of_buffer(program, buffer)) for buffer in table.logical_buffers.values()]
        lying = [(buffer, position) for buffer, position in found if position is not None]
        self._join_in_place_updates(lying, [each for each in ordered if each.opcode in IN_PLACE])
        numbers: dict[int, int] = {}
        self._group = tuple(
            [numbers.setdefault(self._find(position), len(numbers)) for position in range(program.num_positions)]
        )
        self.count = len(numbers)
        ends = accumulate([len(each.shape.leaves) for each in program.instructions])
        self.results = [self._group[first:end] for first, end in pairwise(chain([0], ends))]
        self.in_memory = frozenset([self._group[position] for _, position in lying])

    def of(self, position: int) -> int:
        """Return the group of a position."""
        return self._group[position]

    def of_instruction(self, instruction: Instruction) -> tuple[int, ...]:
        """Return the groups of the leaves of an instruction's result."""
        first = instruction.first_position
        return self._group[first : first + len(instruction.shape.leaves)]

    def _join_in_place_updates(
        self, buffers: Iterable[tuple[LogicalBuffer, int]], updates: Sequence[Instruction]
    ) -> None:
        """Args: buffers: the logical buffers, with the position of each."""
        instructions = self._program.instructions
        pairs = [(instructions[each.operands[0]].first_position, each.first_position) for each in updates]
        places: dict[int, set[tuple[int, int]]] = {self._find(each): set() for pair in pairs for each in pair}
        for buffer, position in buffers:
            root = self._find(position)
            if root in places:
                places[root].add((buffer.allocation, buffer.offset))
        for pair in pairs:
            target, result = map(self._find, pair)
            if target != result and places[target] & places[result]:
                merged = places[target] | places[result]
                self._union(target, result)
                places[self._find(result)] = merged

    def _find(self, position: int) -> int:
        parent = self._parent
        while parent[position] != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    def _union(self, left: int, right: int) -> None:
        self._parent[self._find(right)] = self._find(left)


def position_of(instruction: Instruction, shape_index: tuple[int, ...]) -> int | None:
    """Return the position of a leaf, or None if `shape_index` is a tuple's own pointer table."""
    shape = instruction.shape
    if shape.child_starts is None:
        return None if shape_index else instruction.first_position
    if not shape_index:
        return None
    for number in shape.child(shape_index[0]):  # skip the other elements; there can be thousands
        if shape.leaves[number].shape_index == shape_index:
            return instruction.first_position + number
    return None


def _position_of_buffer(program: Program, buffer: LogicalBuffer) -> int | None:
    return position_of(program.instructions[buffer.instruction], buffer.shape_index)


def called_computations(program: Program, instruction: Instruction) -> tuple[Computation, ...]:
    """Return the computations with data flow when the instruction runs, in the order of their first run."""
    if instruction.opcode == "while":
        body, condition = instruction.called
        return program.computations[condition], program.computations[body]
    if instruction.opcode in _CALLS or instruction.opcode == "conditional":
        return tuple(program.computations[index] for index in instruction.called)
    return ()


def runs(program: Program) -> Iterator[tuple[Instruction, int, bool]]:
    """Yield each instruction, its number of runs in a step, and whether the compiler knows that number.

    A loop with an unknown trip count counts once. A fusion is one instruction.
    """
    open_computations: list[tuple[Computation, int, bool]] = [(program.entry, 1, True)]
    while open_computations:
        computation, times, is_known = open_computations.pop()
        for index in computation.instructions:
            instruction = program.instructions[index]
            yield instruction, times, is_known
            if instruction.opcode == "fusion" or not instruction.called:
                continue
            is_loop = instruction.opcode == "while"
            inside = times * (instruction.trip_count or 1) if is_loop else times
            is_known_inside = is_known and not (is_loop and instruction.trip_count is None)
            for called in called_computations(program, instruction):
                open_computations.append((called, inside, is_known_inside))


def _flatten(program: Program, entry: Computation) -> Iterator[int]:
    """Yield all instructions with data flow, definitions before uses.

    A loop's body comes before the loop itself, because the loop's result is the body's. XLA's call graph is flat: each
    computation of control flow or fusion has one caller. The walk keeps its own stack, because loops can nest deeper
    than Python's recursion limit.
    """
    seen = {id(entry)}
    stack: list[tuple[Iterator[int], int | None]] = [(iter(entry.instructions), None)]
    while stack:
        instructions, caller = stack[-1]
        for index in instructions:
            instruction = program.instructions[index]
            if instruction.called:
                called = [each for each in called_computations(program, instruction) if id(each) not in seen]
                if called:
                    seen.update(map(id, called))
                    inner = chain.from_iterable([computation.instructions for computation in called])
                    stack.append((inner, index))
                    break
            yield index
        else:
            stack.pop()
            if caller is not None:
                yield caller


def _aliases(program: Program, instruction: Instruction) -> Iterable[tuple[int, int]]:
    """Yield the pairs of positions that one instruction makes the same value."""
    opcode = instruction.opcode
    operands = [program.instructions[index] for index in instruction.operands]
    result = instruction.positions
    if opcode == "get-tuple-element":
        return zip(result, _child(operands[0], instruction.tuple_index), strict=True)
    if opcode == "tuple":
        return zip(result, [position for operand in operands for position in operand.positions], strict=True)
    if opcode in _PASSES_OPERAND_ON:
        return zip(result, operands[0].positions, strict=False)
    if opcode == "copy-start":
        return zip(_child(instruction, 1), operands[0].positions, strict=True)
    if opcode in _RESULT_ELEMENT:
        return zip(result, _child(operands[0], _RESULT_ELEMENT[opcode]), strict=True)
    return _control_flow_aliases(program, instruction, operands)


def _control_flow_aliases(
    program: Program, instruction: Instruction, operands: list[Instruction]
) -> Iterable[tuple[int, int]]:
    result: Iterable[int] = instruction.positions
    called = called_computations(program, instruction)
    if instruction.opcode == "while":
        for computation in called:  # the body and the condition both take the carry
            yield from _bind(program, computation, operands)
        body_root = program.instructions[called[1].root]
        yield from zip(result, body_root.positions, strict=True)
        yield from zip(result, operands[0].positions, strict=True)
        return
    if instruction.opcode == "conditional":
        for computation, operand in zip(called, operands[1:], strict=True):
            yield from _bind(program, computation, [operand])
    else:
        for computation in called:
            yield from _bind(program, computation, operands)
        if instruction.opcode == "async-start":
            arguments = (position for operand in operands for position in operand.positions)
            yield from zip(_child(instruction, 0), arguments, strict=True)
            result = _child(instruction, 1)
    for computation in called:
        yield from zip(result, program.instructions[computation.root].positions, strict=True)


def _bind(program: Program, computation: Computation, operands: list[Instruction]) -> Iterable[tuple[int, int]]:
    for parameter, operand in zip(computation.parameters, operands, strict=True):
        yield from zip(program.instructions[parameter].positions, operand.positions, strict=True)


def _child(instruction: Instruction, index: int) -> range:
    leaves, first = instruction.shape.child(index), instruction.first_position
    return range(first + leaves.start, first + leaves.stop)
