"""Equal axes of a program's values: the batch axis, a layer's width, the vocabulary, ...

Each axis of each value has a number, and operations join numbers. An addition joins the axes of two arrays one by one,
a product joins the two axes that it sums over, and a transpose only moves them. In `x @ w + b`, the second axis of `x`
is the first of `w`, and the second of `w` is the first of `b`. The first axis of `x` is also that of the result, and no
parameter has it. Axes of one element have the number 0, which is never joined, because they broadcast to any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Numbers = tuple[int, ...]


class Axes:
    """Axis numbers, as a union-find structure."""

    def __init__(self) -> None:
        self._parents = [0]
        self._summed: set[int] = set()

    def new(self, shape: Sequence[int]) -> Numbers:
        """Return a number for each axis of a new value."""
        return tuple(0 if size == 1 else self._next() for size in shape)

    def _next(self) -> int:
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def find(self, number: int) -> int:
        """Return the representative of all numbers joined with this one."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def found(self, numbers: Iterable[int]) -> frozenset[int]:
        """Return the representatives of these numbers, without axes of one element."""
        return frozenset(self.find(number) for number in numbers) - {0}

    def join(self, left: int, right: int) -> None:
        """Record that two axes are equal."""
        left, right = self.find(left), self.find(right)
        if left and right:
            self._parents[max(left, right)] = min(left, right)

    def join_all(self, left: Numbers, right: Numbers) -> None:
        """Record that two values of one shape have equal axes."""
        for one, other in zip(left, right, strict=False):
            self.join(one, other)

    def of_results(self, equation: Any, operands: Sequence[Numbers]) -> list[Numbers]:
        """Return the axes of an operation's results."""
        shapes = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
        rule = _RULES.get(equation.primitive.name.removesuffix("_p"), _alike)
        results = []
        for outvar in equation.outvars:
            shape = getattr(outvar.aval, "shape", ())
            numbers = self.new(shape)
            for axis, operand, place in rule(equation, shapes, shape):
                if axis < len(numbers) and operand < len(operands) and place < len(operands[operand]):
                    self.join(numbers[axis], operands[operand][place])
            results.append(numbers)
        self._join_contracted(equation, operands)
        return results

    def _join_contracted(self, equation: Any, operands: Sequence[Numbers]) -> None:
        for left, right, is_summed in contracted(equation):
            self.join(operands[0][left], operands[1][right])
            if is_summed:
                self._summed.add(operands[0][left])

    def summed(self) -> frozenset[int]:
        """Return the axes that at least one product sums over."""
        return self.found(self._summed)


_Pairs = Iterable[tuple[int, int, int]]  # axis of the result, number of an operand, axis of the operand
_Rule = Callable[[Any, Sequence[Sequence[int]], Sequence[int]], _Pairs]


def contracted(equation: Any) -> list[tuple[int, int, bool]]:
    """Return the axis pairs that a product sums over (True) or batches over (False); empty for other operations."""
    if equation.primitive.name == "dot_general":
        summed, along = equation.params["dimension_numbers"]
        return [
            *((*pair, True) for pair in zip(*summed, strict=True)),
            *((*p, False) for p in zip(*along, strict=True)),
        ]
    if equation.primitive.name == "conv_general_dilated" and _is_plain(equation):
        numbers = equation.params["dimension_numbers"]
        return [(numbers.lhs_spec[1], numbers.rhs_spec[1], True)]
    return []


def free_axes(equation: Any, operands: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Return the axes of a product's result that come from the left operand only, and from the right one only."""
    if equation.primitive.name == "conv_general_dilated":
        numbers = equation.params["dimension_numbers"]
        return (operands[0][numbers.lhs_spec[0]],), (operands[1][numbers.rhs_spec[0]],)
    pairs = contracted(equation)
    gone = {left for left, _, _ in pairs}, {right for _, right, _ in pairs}
    left, right = (
        tuple(number for axis, number in enumerate(numbers) if axis not in used)
        for numbers, used in zip(operands, gone, strict=False)
    )
    return left, right


def _is_plain(equation: Any) -> bool:
    return bool(equation.params["feature_group_count"] == 1 and equation.params["batch_group_count"] == 1)


def _alike(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    """Pair axes of equal length, for operands with the rank of the result: elementwise operations, or nearly so."""
    for operand, shape in enumerate(shapes):
        if len(shape) == len(result):
            for axis, (size, result_size) in enumerate(zip(shape, result, strict=True)):
                if size == result_size:
                    yield axis, operand, axis


def _sliced(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    """Pair each axis with itself: the result is a part of the operand, or the operand changed or padded."""
    return ((axis, 0, axis) for axis in range(len(result)))


def _concatenated(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    return ((axis, operand, axis) for operand in range(len(shapes)) for axis in range(len(result)))


def _broadcast(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    for place, axis in enumerate(equation.params["broadcast_dimensions"]):
        if shapes[0][place] != 1:
            yield axis, 0, place


def _transposed(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    return ((axis, 0, place) for axis, place in enumerate(equation.params["permutation"]))


def _squeezed(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    gone = {axis % len(shapes[0]) for axis in equation.params["dimensions"]}
    return ((axis, 0, place) for axis, place in enumerate(axis for axis in range(len(shapes[0])) if axis not in gone))


def _stacked(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    new = equation.params["axis"] % len(result)
    kept = [axis for axis in range(len(result)) if axis != new]
    return ((axis, operand, place) for operand in range(len(shapes)) for place, axis in enumerate(kept))


def _unstacked(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    gone = equation.params["axis"] % len(shapes[0])
    return ((axis, 0, place) for axis, place in enumerate(axis for axis in range(len(shapes[0])) if axis != gone))


def _reduced(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    gone = set(equation.params.get("axes", equation.params.get("dimensions", ())))
    kept = [axis for axis in range(len(shapes[0])) if axis not in gone]
    return ((axis, 0, place) for axis, place in enumerate(kept))


def _reshaped(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    """Pair axes that stay; for axes that are merged or split, pair the outermost ones."""
    if 0 in result:
        return
    before = [(place, size) for place, size in enumerate(shapes[0]) if size != 1]
    after = [(axis, size) for axis, size in enumerate(result) if size != 1]
    while before and after:
        (place, before_size), (axis, after_size) = before.pop(0), after.pop(0)
        yield axis, 0, place
        left, right = float(before_size), float(after_size)
        while left != right:
            if left < right:
                left *= before.pop(0)[1] if before else math.inf
            else:
                right *= after.pop(0)[1] if after else math.inf


def _product(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    axis = 0
    for place in left_batch:
        yield axis, 0, place
        axis += 1
    for operand, used in ((0, {*left, *left_batch}), (1, {*right, *right_batch})):
        for place in range(len(shapes[operand])):
            if place not in used:
                yield axis, operand, place
                axis += 1


def _convolution(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    numbers = equation.params["dimension_numbers"]
    if equation.params["batch_group_count"] == 1:
        yield numbers.out_spec[0], 0, numbers.lhs_spec[0]
    if equation.params["feature_group_count"] == 1:
        yield numbers.out_spec[1], 1, numbers.rhs_spec[0]


def _gathered(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    """Pair the axes of whole rows with the operand's, and the others with the axes of the indices."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [place for place in range(len(shapes[0])) if place not in gone]
    for axis, place in zip(numbers.offset_dims, kept, strict=True):
        if sizes[place] == shapes[0][place]:
            yield axis, 0, place
    others = [axis for axis in range(len(result)) if axis not in numbers.offset_dims]
    for place, axis in enumerate(others):
        yield axis, 1, place


def _scattered(equation: Any, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> _Pairs:
    """Pair axes with the first operand's, and with the third's, whose rows are written into it."""
    numbers = equation.params["dimension_numbers"]
    for axis in range(len(result)):
        yield axis, 0, axis
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [axis for axis in range(len(result)) if axis not in gone]
    for axis, place in zip(kept, numbers.update_window_dims, strict=True):
        if shapes[2][place] == result[axis]:
            yield axis, 2, place


_RULES: dict[str, _Rule] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenated,
    "conv_general_dilated": _convolution,
    "dot_general": _product,
    "dynamic_slice": _sliced,
    "dynamic_update_slice": _sliced,
    "gather": _gathered,
    "pad": _sliced,
    "reshape": _reshaped,
    "slice": _sliced,
    "split": _sliced,
    "squeeze": _squeezed,
    "stack": _stacked,
    "transpose": _transposed,
    "unstack": _unstacked,
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"), _reduced
    ),
    **dict.fromkeys(("argmax", "argmin", "reduce"), _reduced),
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max"), _scattered),
}
