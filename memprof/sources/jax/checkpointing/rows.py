"""Follow row axes through an operation, from one input to its results and its other inputs.

An operation treats the rows along an axis separately if a part of the rows can be computed without the others:

    rows_of(exp, [1], 64)                    # the rows of the result lie along axis 1, too
    rows_of(reduce_sum over axis 2, [1], 64)  # the same; over axis 1: they are summed

If a reshape merges the axis with later axes, each row takes several entries of the new axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

_ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex"
    " conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge"
    " gt igamma igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul name ne"
    " neg nextafter not one_minus_square or polygamma population_count pow pvary real reduce_precision"
    " regularized_incomplete_beta rem round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic"
    " shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta".split()
)
COLLECTIVES = frozenset({"pmax", "pmin", "psum", "psum2", "psum_invariant"})
_REDUCTIONS = frozenset({"argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod"})

Axis = int | None  # the row axis; None: an array without rows, which each chunk needs whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The row axes of an operation.

    Attributes:
        inputs: the row axis of each input.
        result: the row axis of the results; None: they are sums over all rows.
        sizes: the parameter that holds the length of the row axis: its name and the index in it.
    """

    inputs: tuple[Axis, ...]
    result: Axis
    sizes: tuple[str, int] | None = None

    def params(self, of_all: Mapping[str, Any], part: int, num_rows: int) -> dict[str, Any]:
        """Return the parameters of the operation for a part of the rows, from those for all rows."""
        params = dict(of_all)
        if self.sizes is not None:
            name, place = self.sizes
            size = params[name][place] // num_rows * part
            params[name] = (*params[name][:place], size, *params[name][place + 1 :])
        return params


def rows_of(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    """Return the row axes of an operation, or None if it mixes the rows or is unknown.

    Args:
        axes: the row axis of each input; None: unknown.
        num_rows: the number of rows.
    """
    name = equation.primitive.name
    if name in _ELEMENTWISE:
        return _elementwise(equation, axes)
    if len(axes) == 1 and axes[0] is not None and (of_one := _UNARY_RULES.get(name)) is not None:
        return of_one(equation, axes[0], num_rows)
    rule = _NARY_RULES.get(name)
    return None if rule is None else rule(equation, axes)


def divided_rows(equation: Any, axes: Sequence[Axis], num_rows: int) -> int | None:
    """Return the number of parts into which a reshape divides the rows, such as examples of tokens; otherwise None."""
    if equation.primitive.name != "reshape" or axes[0] is None:
        return None
    (operand, *_), sizes = equation.invars, equation.params["new_sizes"]
    before = prod(operand.aval.shape[: axes[0]])
    return next(
        (
            size
            for place, size in enumerate(sizes)
            if 1 < size < num_rows and num_rows % size == 0 and prod(sizes[:place]) == before
        ),
        None,
    )


def is_known(name: str) -> bool:
    """Whether there is a rule for an operation, although it may mix the rows."""
    return name in _ELEMENTWISE or name in _UNARY_RULES or name in _NARY_RULES


def rows_behind(equation: Any, axis: int) -> Rows | None:
    """Return the row axes of an operation whose result has its rows along an axis, or None if unknown."""
    name, length = equation.primitive.name, equation.outvars[0].aval.shape[axis]
    if name in _ELEMENTWISE:
        return _elementwise(equation, [axis])
    if name != "broadcast_in_dim":
        return None
    (operand, *_), dimensions = equation.invars, tuple(map(int, equation.params["broadcast_dimensions"]))
    place = dimensions.index(axis) if axis in dimensions else None
    has_rows = place is not None and operand.aval.shape[place] == length
    return Rows(inputs=(place if has_rows else None,), result=axis, sizes=("shape", axis))


def _elementwise(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    """Return the row axes of an elementwise operation. Scalars and axes of length 1 are broadcast."""
    found = {axis for axis in axes if axis is not None}
    shape = equation.outvars[0].aval.shape
    if len(found) != 1 or any(atom.aval.ndim not in (0, len(shape)) for atom in equation.invars):
        return None
    (axis,) = found
    inputs = (axis if atom.aval.ndim and atom.aval.shape[axis] == shape[axis] else None for atom in equation.invars)
    return Rows(inputs=tuple(inputs), result=axis)


def _collective(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    """Return the row axes of a collective within a `shard_map`: it combines the same entries of several devices."""
    of_vmap = any(isinstance(each, int) for each in equation.params["axes"])  # an axis of the array
    return None if of_vmap else _elementwise(equation, axes)


def _broadcast(equation: Any, axis: int, num_rows: int) -> Rows | None:
    result = int(equation.params["broadcast_dimensions"][axis])
    return Rows(inputs=(axis,), result=result, sizes=("shape", result))


def _reduction(equation: Any, axis: int, num_rows: int) -> Rows | None:
    reduced = tuple(map(int, equation.params["axes"]))
    if axis in reduced:
        return None
    return Rows(inputs=(axis,), result=axis - sum(each < axis for each in reduced))


def _sum(equation: Any, axis: int, num_rows: int) -> Rows | None:
    return _reduction(equation, axis, num_rows) or Rows(inputs=(axis,), result=None)


def _along(name: str) -> Callable[[Any, Sequence[Axis]], Rows | None]:
    """Return the rule of an operation along one axis of all its inputs, which the parameter `name` holds."""

    def rule(equation: Any, axes: Sequence[Axis]) -> Rows | None:
        found = {axis for axis in axes if axis is not None}
        if len(found) != 1 or equation.params[name] in found:
            return None
        (axis,) = found
        return Rows(inputs=(axis,) * len(axes), result=axis)

    return rule


def _transpose(equation: Any, axis: int, num_rows: int) -> Rows | None:
    return Rows(inputs=(axis,), result=list(equation.params["permutation"]).index(axis))


def _reshape(equation: Any, axis: int, num_rows: int) -> Rows | None:
    shape, sizes = equation.invars[0].aval.shape, equation.params["new_sizes"]
    for place, size in enumerate(sizes):
        if size % num_rows == 0 and prod(sizes[:place]) == prod(shape[:axis]):
            return Rows(inputs=(axis,), result=place, sizes=("new_sizes", place))
    return None


def _squeeze(equation: Any, axis: int, num_rows: int) -> Rows | None:
    return Rows(inputs=(axis,), result=axis - sum(int(each) < axis for each in equation.params["dimensions"]))


def _dot(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    contracted, batch = equation.params["dimension_numbers"]
    lhs, rhs = axes
    for of_side, axis in ((0, lhs), (1, rhs)):
        if axis is not None and axis in contracted[of_side]:
            place = list(contracted[of_side]).index(axis)
            return Rows(inputs=(contracted[0][place], contracted[1][place]), result=None)
    if lhs is not None and lhs in batch[0]:
        place = list(batch[0]).index(lhs)
        return Rows(inputs=(lhs, batch[1][place]), result=place)
    if rhs is not None and rhs in batch[1]:
        place = list(batch[1]).index(rhs)
        return Rows(inputs=(batch[0][place], rhs), result=place)
    side = 0 if lhs is not None else 1
    axis = axes[side]
    if axes[1 - side] is not None or axis is None or axis in contracted[side]:
        return None
    free = [
        [each for each in range(atom.aval.ndim) if each not in (*contracted[number], *batch[number])]
        for number, atom in enumerate(equation.invars)
    ]
    result = len(batch[0]) + side * len(free[0]) + free[side].index(axis)
    return Rows(inputs=(axis, None) if side == 0 else (None, axis), result=result)


def _gather(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    numbers, sizes, (axis, _) = equation.params["dimension_numbers"], equation.params["slice_sizes"], axes
    in_batch = [each for each in range(equation.outvars[0].aval.ndim) if each not in numbers.offset_dims]
    if axis is None and axes[1] in numbers.start_indices_batching_dims:  # each row of indices has its own operand
        axis = numbers.operand_batching_dims[numbers.start_indices_batching_dims.index(axes[1])]
    if axis is None:
        return _gather_by_rows(equation, axes[1], in_batch)
    if axis in numbers.operand_batching_dims:  # each row has its own indices
        of_indices = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
        return Rows(inputs=(axis, of_indices), result=in_batch[of_indices])
    if (
        axes[1] is not None
        or sizes[axis] != equation.invars[0].aval.shape[axis]
        or axis in numbers.collapsed_slice_dims
    ):
        return None
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [each for each in range(equation.invars[0].aval.ndim) if each not in dropped]
    return Rows(inputs=(axis, None), result=numbers.offset_dims[kept.index(axis)], sizes=("slice_sizes", axis))


def _gather_by_rows(equation: Any, axis: Axis, in_batch: Sequence[int]) -> Rows | None:
    """Return the row axes of a gather whose indices have the rows: each row looks up entries of the whole operand."""
    return None if axis is None else Rows(inputs=(None, axis), result=in_batch[axis])


def _convolution(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    numbers = equation.params["dimension_numbers"]
    if axes[0] != numbers.lhs_spec[0] or axes[1] is not None or equation.params["batch_group_count"] != 1:
        return None
    return Rows(inputs=(axes[0], None), result=numbers.out_spec[0])


def _pad(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    axis = axes[0]
    if axis is None or any(equation.params["padding_config"][axis]):
        return None
    return Rows(inputs=(axis, None), result=axis)


def _window(equation: Any, axis: int, num_rows: int) -> Rows | None:
    params = equation.params
    is_one = all(params[name][axis] == 1 for name in ("window_dimensions", "window_strides", "base_dilation"))
    return Rows(inputs=(axis,), result=axis) if is_one and not any(params["padding"][axis]) else None


def _unless_along(name: str) -> Callable[[Any, int, int], Rows | None]:
    """Return the rule of an operation that mixes entries only along the axis or axes in the parameter `name`."""

    def rule(equation: Any, axis: int, num_rows: int) -> Rows | None:
        along = equation.params[name]
        is_along = axis in along if isinstance(along, tuple) else axis == along
        return None if is_along else Rows(inputs=(axis,), result=axis)

    return rule


def _stack(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    found = {axis for axis in axes if axis is not None}
    if len(found) != 1:
        return None
    (axis,) = found
    return Rows(inputs=(axis,) * len(axes), result=axis + (equation.params["axis"] <= axis))


def _unstack(equation: Any, axis: int, num_rows: int) -> Rows | None:
    along = equation.params["axis"]
    return None if axis == along else Rows(inputs=(axis,), result=axis - (along < axis))


def _tile(equation: Any, axis: int, num_rows: int) -> Rows | None:
    return Rows(inputs=(axis,), result=axis) if equation.params["reps"][axis] == 1 else None


def _dynamic_slice(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    axis, *starts = axes
    if axis is None or any(each is not None for each in starts):
        return None
    if equation.params["slice_sizes"][axis] != equation.invars[0].aval.shape[axis]:
        return None
    return Rows(inputs=(axis, *starts), result=axis, sizes=("slice_sizes", axis))


def _dynamic_update_slice(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    array, update, *starts = axes
    axis = update if array is None else array
    if axis is None or update not in (axis, None) or any(each is not None for each in starts):
        return None
    if equation.invars[0].aval.shape[axis] != equation.invars[1].aval.shape[axis]:
        return None
    return Rows(inputs=(axis, axis, *starts), result=axis)


def _scatter(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    """Return the row axes of a scatter that writes the same places of each row, or has indices for each row."""
    if (by_rows := _scatter_by_rows(equation, axes)) is not None:
        return by_rows
    numbers, (array, _, updates) = equation.params["dimension_numbers"], equation.invars
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [each for each in range(array.aval.ndim) if each not in dropped]
    of_updates = dict(zip(window, numbers.update_window_dims, strict=True))
    axis = axes[0] if axes[0] is not None else next((each for each in window if of_updates[each] == axes[2]), None)
    if axis not in of_updates or axes[1] is not None or axes[2] not in (of_updates[axis], None):
        return None
    if axis in numbers.scatter_dims_to_operand_dims or array.aval.shape[axis] != updates.aval.shape[of_updates[axis]]:
        return None
    return Rows(inputs=(axis, None, of_updates[axis]), result=axis)


def _scatter_by_rows(equation: Any, axes: Sequence[Axis]) -> Rows | None:
    """Return the row axes of a scatter whose rows each have their own indices, as in the gradient of such a gather."""
    numbers = equation.params["dimension_numbers"]
    in_batch = [each for each in range(equation.invars[2].aval.ndim) if each not in numbers.update_window_dims]
    for operand, indices in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        inputs = (operand, indices, in_batch[indices])
        known = [axis == own for axis, own in zip(axes, inputs, strict=True) if axis is not None]
        if known and all(known):
            return Rows(inputs=inputs, result=operand)
    return None


def _slice(equation: Any, axis: int, num_rows: int) -> Rows | None:
    params, strides = equation.params, equation.params["strides"]
    is_whole = params["limit_indices"][axis] - params["start_indices"][axis] == equation.invars[0].aval.shape[axis]
    if not is_whole or (strides is not None and strides[axis] != 1):
        return None
    return Rows(inputs=(axis,), result=axis, sizes=("limit_indices", axis))


_UNARY_RULES: dict[str, Callable[[Any, int, int], Rows | None]] = {
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _window),
    "broadcast_in_dim": _broadcast,
    "reduce_sum": _sum,
    "reshape": _reshape,
    "rev": _unless_along("dimensions"),
    "slice": _slice,
    "split": _unless_along("axis"),
    "squeeze": _squeeze,
    "tile": _tile,
    "top_k": _unless_along("axis"),
    "transpose": _transpose,
    "unstack": _unstack,
}
_NARY_RULES: dict[str, Callable[[Any, Sequence[Axis]], Rows | None]] = {
    **dict.fromkeys(COLLECTIVES, _collective),
    **dict.fromkeys(("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"), _along("axis")),
    "concatenate": _along("dimension"),
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_max", "scatter_min", "scatter_mul"), _scatter),
    "sort": _along("dimension"),
    "stack": _stack,
}
