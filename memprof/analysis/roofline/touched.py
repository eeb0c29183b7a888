"""The elements that a kernel reads and writes, which can be far fewer than those of its operands and results.

The analysis follows a kernel backward from its results. A result is needed as a whole or, if an update is written in
place (`dynamic-update-slice`, `scatter`), only in its updated part. Each instruction then needs some elements of its
operands: a slice as many as it returns, an elementwise operation one per result element, a reduction all that it sums.
The uses of a value add up, but never exceed its size.

Two approximations keep the result a lower bound: a part of a reduction or product needs the same part of its operands,
and an update counts as in place whenever possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.analysis.hlo.program import Computation, Instruction, Program, ResultLeaf

_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
_SAME_MEMORY = frozenset({"bitcast", "reshape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The memory accesses and products of one kernel.

    Attributes:
        read_bytes: bytes read from each operand.
        written_bytes: bytes written to each leaf of the result.
        products: the inner dots and convolutions (indices of instructions), each with the needed share of its result.
    """

    read_bytes: tuple[int, ...]
    written_bytes: tuple[int, ...]
    products: tuple[tuple[int, float], ...]


def touched(program: Program, instruction: Instruction, index: int) -> Touched:
    """Find the memory accesses of a kernel: a fusion, or any other instruction that is one kernel.

    Args:
        index: the number of the instruction.
    """
    operands = [program.instructions[operand] for operand in instruction.operands]
    if instruction.opcode == "fusion":
        needs = _needs_of_fusion(program, program.computations[instruction.called[0]], share=1.0)
        of_operands, products, of_results = needs.parameters, needs.products, needs.results
    else:
        needed = _updated_elements(program, instruction, is_fused=False)
        of_results = [needed] if needed is not None else [leaf.num_elements for leaf in instruction.shape.leaves]
        of_operands = _needs_of_operands(instruction, operands, max(of_results, default=0))
        products = [(index, 1.0)] if instruction.product is not None else []
    return Touched(
        read_bytes=tuple(
            sum(_part(leaf, need) for leaf in operand.shape.leaves)
            for operand, need in zip(operands, of_operands, strict=False)
        ),
        written_bytes=tuple(
            _part(leaf, need) for leaf, need in zip(instruction.shape.leaves, of_results, strict=False)
        ),
        products=tuple(products),
    )


@dataclass(frozen=True, slots=True)
class _Needs:
    """The elements that a fused computation needs from each parameter, and those that it writes to each result."""

    parameters: list[int]
    results: list[int]
    products: list[tuple[int, float]]


def _needs_of_fusion(program: Program, computation: Computation, *, share: float) -> _Needs:
    """Args: share: the needed part of the results."""
    instructions = program.instructions
    root = instructions[computation.root]
    results = root.operands if root.opcode == "tuple" else (computation.root,)
    needed: dict[int, int] = {}
    of_results = []
    for index in results:
        updated = _updated_elements(program, instructions[index], is_fused=True)
        for leaf in instructions[index].shape.leaves:
            of_results.append(leaf.num_elements if updated is None else updated)
        size = _size(instructions[index])
        elements = round((size if updated is None else updated) * share)
        needed[index] = min(size, needed.get(index, 0) + elements)
    products: list[tuple[int, float]] = []
    for index in reversed(computation.instructions):
        instruction, elements = instructions[index], needed.get(index, 0)
        if not elements or not instruction.operands or (instruction.opcode == "tuple" and index == computation.root):
            continue
        operands = [instructions[operand] for operand in instruction.operands]
        if instruction.opcode == "fusion":
            part = elements / max(_size(instruction), 1)
            inner = _needs_of_fusion(program, program.computations[instruction.called[0]], share=part)
            of_operands, products = inner.parameters, products + inner.products
        else:
            of_operands = _needs_of_operands(instruction, operands, elements)
            if instruction.product is not None:
                products.append((index, elements / max(_size(instruction), 1)))
        for operand, each, need in zip(instruction.operands, operands, of_operands, strict=False):
            before = needed.get(operand, 0)
            # The elements of a tuple are separate arrays.
            after = max(before, need) if each.shape.child_starts is not None else before + need
            needed[operand] = min(_size(each), after)
    return _Needs([needed.get(index, 0) for index in computation.parameters], of_results, products)


def _needs_of_operands(instruction: Instruction, operands: Sequence[Instruction], elements: int) -> list[int]:
    """Return the number of elements of each operand that an instruction needs for some elements of its result."""
    opcode, sizes = instruction.opcode, [_size(each) for each in operands]
    if opcode in _SLICES:
        return [min(sizes[0], elements), *sizes[1:]] if sizes else []
    if opcode == "dynamic-update-slice":
        return [max(0, elements - sizes[1]), min(sizes[1], elements), *sizes[2:]]
    if opcode == "scatter":
        num_inputs = len(sizes) // 2  # an index stands between inputs and updates
        num_updates = sum(sizes[num_inputs + 1 :])
        of_inputs = [0 if elements <= num_updates else min(size, elements) for size in sizes[:num_inputs]]
        return [*of_inputs, *sizes[num_inputs:]]
    if opcode in ("broadcast", "concatenate", "pad"):
        return [min(size, elements) for size in sizes]
    whole = max(_size(instruction), 1)
    return [-(-size * min(elements, whole) // whole) for size in sizes]


def _updated_elements(program: Program, instruction: Instruction, *, is_fused: bool) -> int | None:
    """Return the number of elements that an in-place update writes; None for any other instruction.

    A fusion can only update its parameters in place; an update of a value that it computes writes the whole value.
    """
    instructions = program.instructions
    while instruction.opcode in _SAME_MEMORY:
        instruction = instructions[instruction.operands[0]]
    if instruction.opcode not in _UPDATES:
        return None
    updated = instructions[instruction.operands[0]]
    while updated.opcode in _SAME_MEMORY:
        updated = instructions[updated.operands[0]]
    if is_fused and updated.opcode != "parameter":
        return None
    if instruction.opcode == "dynamic-update-slice":
        updates = [instructions[instruction.operands[1]]]
    else:
        num_inputs = len(instruction.operands) // 2
        updates = [instructions[operand] for operand in instruction.operands[num_inputs + 1 :]]
    return min(_size(instruction), sum(_size(each) for each in updates))


def _size(instruction: Instruction) -> int:
    """Return the number of elements of the result; for a tuple, of its largest array."""
    return max((leaf.num_elements for leaf in instruction.shape.leaves), default=0)


def _part(leaf: ResultLeaf, elements: int) -> int:
    whole = max(leaf.num_elements, 1)
    return leaf.size_bytes * min(elements, whole) // whole
