"""Consistency checks of a program and its buffer assignment. They run once, so the analysis can rely on them.

A capture can come from anywhere. Its program uses numbers as references: operands, called computations, tuple
elements, buffers, allocations. This module checks that each number refers to something that exists, and that sizes and
shapes are possible. The analysis itself reports errors that it finds while it follows the program (a loop whose body
has another shape, a heap trace that frees a buffer that is not live).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any

from memprof.analysis.hlo.products import Dot
from memprof.analysis.hlo.program import Computation, Instruction, Program
from memprof.analysis.hlo.tiling import Tiles
from memprof.errors import InternalError
from memprof.untrusted import MAX_BYTES

_MAX_DIMENSIONS = 64
_MAX_TILE = 1 << 20  # in one dimension
# A logical buffer: its number, its size in bytes, the number of its instruction, and the element of that instruction.
Buffer = tuple[int, int, int, tuple[int, ...]]
# The place of a buffer: its number, its offset in the allocation, and its size there.
Place = tuple[int, int, int]

# Assumptions of the analysis about instructions, by opcode: the minimum number of operands, and the operands whose data
# it reads.
_NUM_OPERANDS = {
    "get-tuple-element": 1, "bitcast": 1, "optimization-barrier": 1, "add-dependency": 1, "domain": 1,
    "async-update": 1, "all-reduce-done": 1, "copy-start": 1, "copy-done": 1, "async-done": 1, "all-gather-done": 1,
    "collective-permute-done": 1, "while": 1, "conditional": 2, "dynamic-update-slice": 2, "scatter": 1,
    "copy": 1, "transpose": 1, "reshape": 1, "convert": 1, "broadcast": 1, "multiply": 2, "divide": 2,
    "dot": 1,
}  # fmt: skip
_OPERANDS_WITH_DATA = {
    "dynamic-update-slice": (0, 1), "scatter": (0,), "copy": (0,), "transpose": (0,), "reshape": (0,), "convert": (0,),
    "broadcast": (0,),
}  # fmt: skip
_NUM_CALLED = {"while": 2, "fusion": 1, "call": 1, "async-start": 1}
# The element that is extracted from the first operand or from the result.
_ELEMENT_OF_OPERAND = {"copy-done": 0, "async-done": 1, "all-gather-done": 1, "collective-permute-done": 1}
_ELEMENT_OF_RESULT = {"copy-start": 1, "async-start": 1}


def check_program(program: Program) -> None:
    """Check a decoded program.

    Raises:
        InternalError: it is inconsistent; the message says where.
    """
    owner = [-1] * len(program.instructions)
    for number, computation in enumerate(program.computations):
        for index in computation.instructions:
            if owner[index] != -1:
                raise _broken(f"{computation.name} runs an instruction that another computation runs, too")
            owner[index] = number
    _require(-1 not in owner, "its schedule leaves instructions out")
    for number, computation in enumerate(program.computations):
        _check_computation(program, computation, number, owner)
    _check_calls(program)


def check_shape(element_bytes: int, dimensions: Sequence[int]) -> None:
    """Check the dimensions of one array.

    Raises:
        InternalError: there are too many, or no array can have this shape.
    """
    if dimensions:
        possible = len(dimensions) <= _MAX_DIMENSIONS and min(dimensions) >= 0
        _require(possible and prod(dimensions) * element_bytes <= MAX_BYTES, "it has an array of an impossible shape")


def check_layout(dimensions: Sequence[int], order: Sequence[int], tiles: Tiles) -> None:
    """Check the tiles of one array.

    Args:
        order: the order of its dimensions, if it has tiles.

    Raises:
        InternalError: such an array cannot have these tiles.
    """
    if tiles:
        is_order = sorted(order) == list(range(len(dimensions)))
        _require(
            is_order and all(0 < step <= _MAX_TILE for step in chain(*tiles)), "it has an array of impossible tiles"
        )


def check_unique(what: str, ids: Sequence[int]) -> None:
    """Check that numbers used as references are unique.

    Raises:
        InternalError: two numbers are equal.
    """
    _require(len(set(ids)) == len(ids), f"two of its {what} have the same number")


def check_assignment(
    allocations: Iterable[Any], places: Iterable[Iterable[Place]], buffers: Sequence[Buffer], program: Program
) -> None:
    """Check `proto.buffer_assignment`, which places the values of a program in memory.

    Args:
        allocations: its allocations.
        places: the buffers in each allocation.
        buffers: its logical buffers.

    Raises:
        InternalError: it is inconsistent; the message says where.
    """
    check_unique("logical buffers", [number for number, *_ in buffers])
    parameters = {program.instructions[index].parameter_number: index for index in program.entry.parameters}
    instruction_of = {number: instruction_id for number, _, instruction_id, _ in buffers}
    placed: dict[int, int] = {}
    for allocation, assigned in zip(allocations, places, strict=True):
        size_bytes = allocation.size
        if not 0 <= size_bytes <= MAX_BYTES:
            raise _broken(f"allocation {allocation.index} has an impossible size")
        if allocation.is_entry_computation_parameter:
            index = parameters.get(allocation.parameter_number)
            if index is None:
                raise _broken(f"allocation {allocation.index} belongs to a parameter that the program does not have")
            made_by = {instruction_of[number] for number, *_ in assigned if number in instruction_of}
            if not any(number in program.index_of_id and program.index_of_id[number] == index for number in made_by):
                raise _broken(f"allocation {allocation.index} does not hold the parameter that it belongs to")
        for buffer_id, offset, placed_bytes in assigned:
            if not 0 <= offset <= offset + placed_bytes <= size_bytes:
                raise _broken(f"allocation {allocation.index} is smaller than one of its buffers")
            if buffer_id in placed:
                raise _broken("one of its logical buffers lies in two places")
            placed[buffer_id] = placed_bytes
    elements: dict[int, set[tuple[int, ...]]] = {}
    for buffer in buffers:
        if buffer[0] in placed:
            _check_buffer(buffer, placed.pop(buffer[0]), program, elements)
    _require(not placed, "an allocation holds a buffer that is not in its list of buffers")


def check_sizes(program: Program, buffers: Iterable[tuple[int, tuple[int, ...], int]]) -> None:
    """Check that each buffer has the size of its array, on a platform that does not pad arrays.

    Args:
        buffers: the instruction, the shape index and the size in bytes of each logical buffer.

    Raises:
        InternalError: a size contradicts a shape.
    """
    sizes_of: dict[int, dict[tuple[int, ...], tuple[int, int]]] = {}
    for index, shape_index, size_bytes in buffers:
        shape = program.instructions[index].shape
        sizes = sizes_of.get(id(shape))
        if sizes is None:
            sizes = {leaf.shape_index: (leaf.size_bytes, prod(leaf.dimensions)) for leaf in shape.leaves}
            sizes_of[id(shape)] = sizes
        # A tuple has a pointer table and no leaf; a token has no bytes.
        array_bytes, num_elements = sizes.get(shape_index, (0, 0))
        is_unpacked = array_bytes < num_elements == size_bytes  # XLA may or may not pack elements below a byte
        if array_bytes and size_bytes != array_bytes and not is_unpacked:
            name = program.instructions[index].name
            raise _broken(f"{name} has {array_bytes:,} bytes by its shape, but {size_bytes:,} by its buffer")


def _check_buffer(
    buffer: Buffer, placed_bytes: int, program: Program, elements: dict[int, set[tuple[int, ...]]]
) -> None:
    number, size_bytes, instruction_id, place = buffer
    # Reports show the size of the buffer, but the verdict uses the size of its place, so the two must be equal.
    if size_bytes != placed_bytes:
        raise _broken(f"the size of logical buffer {number} differs from that of its place")
    if instruction_id not in program.index_of_id:
        raise _broken(f"logical buffer {number} belongs to an instruction that the program does not have")
    if not place:
        return
    index = program.index_of_id[instruction_id]
    if index not in elements:
        shape = program.instructions[index].shape
        inside = {leaf.shape_index[:depth] for leaf in shape.leaves for depth in range(1, len(leaf.shape_index) + 1)}
        # An element that is an empty tuple has a pointer table too.
        elements[index] = inside | {(number,) for number in range(len(shape.child_starts or ()) - 1)}
    if place not in elements[index]:
        raise _broken(f"logical buffer {number} belongs to an element that its instruction does not have")


def _check_computation(program: Program, computation: Computation, number: int, owner: Sequence[int]) -> None:
    name, instructions = computation.name, program.instructions
    _require(owner[computation.root] == number, f"{name} does not contain its root")
    numbers = [instructions[index].parameter_number for index in computation.parameters]
    _require(numbers == list(range(len(numbers))), f"the parameters of {name} are not numbered from 0 on")
    seen: set[int] = set()
    for index in computation.instructions:
        instruction = instructions[index]
        operands = instruction.operands
        if operands and not seen.issuperset(operands):
            raise _broken(f"{instruction.name} uses a value that its computation has not made yet")
        seen.add(index)
        if instruction.opcode in _CHECKED:
            _check_instruction(instruction, [instructions[operand] for operand in operands])


def _check_instruction(instruction: Instruction, operands: Sequence[Instruction]) -> None:
    opcode = instruction.opcode
    if len(operands) < _NUM_OPERANDS.get(opcode, 0):
        raise _broken(f"{instruction.name} ({opcode}) lacks an operand")
    num_called = len(operands) - 1 if opcode == "conditional" else _NUM_CALLED.get(opcode, len(instruction.called))
    if len(instruction.called) != num_called:
        raise _broken(f"{instruction.name} ({opcode}) calls the wrong number of computations")
    for number in _OPERANDS_WITH_DATA.get(opcode, ()) if operands else ():
        if not (operands[number].shape.leaves and instruction.shape.leaves):
            raise _broken(f"{instruction.name} ({opcode}) has an operand or a result without data")
    if opcode == "get-tuple-element":
        _check_element(instruction, operands[0], instruction.tuple_index)
    elif opcode == "dot":
        _check_contraction(instruction, operands[0])
    elif opcode in _ELEMENT_OF_OPERAND:
        _check_element(instruction, operands[0], _ELEMENT_OF_OPERAND[opcode])
    elif opcode in _ELEMENT_OF_RESULT:
        _check_element(instruction, instruction, _ELEMENT_OF_RESULT[opcode])


_CHECKED = frozenset({*_NUM_OPERANDS, *_OPERANDS_WITH_DATA, *_NUM_CALLED, *_ELEMENT_OF_OPERAND, *_ELEMENT_OF_RESULT})


def _check_element(instruction: Instruction, of: Instruction, element: int) -> None:
    starts = of.shape.child_starts
    if starts is None or not 0 <= element < len(starts) - 1:
        raise _broken(f"{instruction.name} ({instruction.opcode}) refers to an element that does not exist")


def _check_contraction(dot: Instruction, left: Instruction) -> None:
    if len(dot.shape.leaves) != 1 or len(left.shape.leaves) != 1:
        raise _broken(f"{dot.name} (dot) is not a product of arrays")
    rank = len(left.shape.leaves[0].dimensions)
    contracting = dot.product.contracting if isinstance(dot.product, Dot) else ()
    if not all(0 <= number < rank for number in contracting):
        raise _broken(f"{dot.name} (dot) contracts a dimension that its operand does not have")


def _check_calls(program: Program) -> None:
    """Check that no computation calls itself, directly or through others."""
    instructions = program.instructions
    called = [
        [inner for index in computation.instructions if (numbers := instructions[index].called) for inner in numbers]
        for computation in program.computations
    ]
    done: set[int] = set()
    for start in range(len(called)):
        if start in done:
            continue
        open_calls: list[tuple[int, Iterator[int]]] = [(start, iter(called[start]))]
        path = {start}
        while open_calls:
            caller, rest = open_calls[-1]
            inner = next((each for each in rest if each not in done), None)
            if inner is None:
                open_calls.pop()
                path.discard(caller)
                done.add(caller)
                continue
            _require(inner not in path, f"{program.computations[inner].name} calls itself")
            path.add(inner)
            open_calls.append((inner, iter(called[inner])))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _broken(otherwise)


def _broken(how: str) -> InternalError:
    """Make the error. Callers in hot loops make it only on failure, because its message costs more than the check."""
    return InternalError(f"the compiled program is inconsistent: {how}")
