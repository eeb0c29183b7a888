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
    " gt igamma igamma_grad_a igammac imag integer_pow is_finite layout_constraint le le_to lgamma log log1p log2"
    " logistic lt lt_to max min mul mulhi name ne neg nextafter not one_minus_square or polygamma polynomial"
    " population_count pow pvary random_clone random_fold_in real reduce_precision regularized_incomplete_beta rem"
    " round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign sin sinh"
    " sqrt square stop_gradient sub tan tanh threefry2x32 xor zeta".split()
)
COLLECTIVES = frozenset({"pmax", "pmin", "psum", "psum2", "psum_invariant"})
_REDUCTIONS = frozenset(
    {"argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_xor"}
)
_WINDOWS = (
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "select_and_gather_add",
    "select_and_scatter_add",
)
_SCATTERS = ("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
_OF_MATRICES = ("cholesky", "eigh", "lu", "qr", "svd", "triangular_solve")  # they may lie along earlier axes
# Operations that may add or drop last axes: the entries of a key, the bytes of a number, or new random numbers.
_WITH_ENTRIES = frozenset({"bitcast_convert_type", "random_bits", "random_split", "random_unwrap", "random_wrap"})

Axis = int | None  # the row axis; None: an array without rows, which each chunk needs whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The row axes of an operation.

    Attributes:
        inputs: the row axis of each input.
        result: the row axis of the results; None: they are sums over all rows.
        sizes: the parameter that is proportional to the number of rows, such as a length: its name and the index in it
            (None: a number).
    """

    inputs: tuple[Axis, ...]
    result: Axis
    sizes: tuple[str, int | None] | None = None

    def params(self, of_all: Mapping[str, Any], part: int, num_rows: int) -> dict[str, Any]:
        """Return the parameters of the operation for a part of the rows, from those for all rows."""
        params = dict(of_all)
        if self.sizes is not None:
            name, place = self.sizes
            of_all_rows = params[name]
            size = (of_all_rows if place is None else of_all_rows[place]) // num_rows * part
            params[name] = size if place is None else (*of_all_rows[:place], size, *of_all_rows[place + 1 :])
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
    return None if rule is None else rule(equation, axes, num_rows)


def divided_rows(equation: Any, axes: Sequence[Axis], num_rows: int) -> int | None:
    """Return the number of parts into which a reshape divides the rows, such as examples of tokens; otherwise None."""
    if equation.primitive.name != "reshape" or axes[0] is None:
        return None
    sizes, before = equation.params["new_sizes"], entries_before(equation, axes[0])
    return next(
        (
            size
            for place, size in enumerate(sizes)
            if 1 < size < num_rows and num_rows % size == 0 and prod(sizes[:place]) == before
        ),
        None,
    )


def entries_before(reshape: Any, axis: int) -> int:
    """Return the product of the lengths of all axes before one in a reshape's operand, which it may transpose first."""
    order = reshape.params["dimensions"] or range(reshape.invars[0].aval.ndim)
    return prod(reshape.invars[0].aval.shape[each] for each in [*order][: [*order].index(axis)])


def is_known(name: str) -> bool:
    """Whether there is a rule for an operation, although it may mix the rows."""
    return name in _ELEMENTWISE or name in _UNARY_RULES or name in _NARY_RULES


def rows_behind(equation: Any, axis: int) -> Rows | None:
    """Return the row axes of an operation whose result has its rows along an axis, or None if unknown."""
    name, length = equation.primitive.name, equation.outvars[0].aval.shape[axis]
    if len(equation.outvars) > 1:
        return None
    if name in _ELEMENTWISE:
        return _elementwise(equation, [axis])
    if name in _WITH_ENTRIES:
        return _with_entries(equation, axis, length) if axis < equation.invars[0].aval.ndim else None
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


def _collective(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
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


def _along(name: str) -> Callable[[Any, Sequence[Axis], int], Rows | None]:
    """Return the rule of an operation along one axis of all its inputs, which the parameter `name` holds."""

    def rule(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
        found = {axis for axis in axes if axis is not None}
        if len(found) != 1 or equation.params[name] in found:
            return None
        (axis,) = found
        return Rows(inputs=(axis,) * len(axes), result=axis)

    return rule


def _transpose(equation: Any, axis: int, num_rows: int) -> Rows | None:
    return Rows(inputs=(axis,), result=list(equation.params["permutation"]).index(axis))


def _reshape(equation: Any, axis: int, num_rows: int) -> Rows | None:
    sizes, before = equation.params["new_sizes"], entries_before(equation, axis)
    for place, size in enumerate(sizes):
        if size % num_rows == 0 and prod(sizes[:place]) == before:
            return Rows(inputs=(axis,), result=place, sizes=("new_sizes", place))
    return None


def _squeeze(equation: Any, axis: int, num_rows: int) -> Rows | None:
    return Rows(inputs=(axis,), result=axis - sum(int(each) < axis for each in equation.params["dimensions"]))


def _dot(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
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


def _gather(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
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
    return None if axis is None or axis >= len(in_batch) else Rows(inputs=(None, axis), result=in_batch[axis])


def _convolution(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    numbers, (of_input, of_kernel) = equation.params["dimension_numbers"], axes
    if of_kernel is None:
        is_batch = of_input == numbers.lhs_spec[0] and equation.params["batch_group_count"] == 1
        return Rows(inputs=(of_input, None), result=numbers.out_spec[0]) if is_batch else None
    # A `vmap` over inputs and kernels, as for the gradients of kernels, makes a group of each row.
    for name, axis in (("feature_group_count", numbers.lhs_spec[1]), ("batch_group_count", numbers.lhs_spec[0])):
        if equation.params[name] % num_rows == 0 and of_input in (axis, None) and of_kernel == numbers.rhs_spec[0]:
            return Rows(inputs=(axis, of_kernel), result=numbers.out_spec[1], sizes=(name, None))
    return None


def _fft(equation: Any, axis: int, num_rows: int) -> Rows | None:
    is_along = axis >= equation.invars[0].aval.ndim - len(equation.params["fft_lengths"])
    return None if is_along else Rows(inputs=(axis,), result=axis)


def _matrices(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    found = {axis for axis in axes if axis is not None}
    is_before = len(found) == 1 and max(found) < equation.invars[0].aval.ndim - 2
    return Rows(inputs=(*found,) * len(axes), result=max(found)) if is_before else None


def _pad(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    axis = axes[0]
    if axis is None or any(equation.params["padding_config"][axis]):
        return None
    return Rows(inputs=(axis, None), result=axis)


def _window(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    """Return the row axes of an operation on windows, or of its gradient, if each window lies within a row."""
    found, params = {axis for axis in axes if axis is not None}, equation.params
    if len(found) != 1:
        return None
    (axis,) = found
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    is_within = all(params[name][axis] == 1 for name in names if name in params) and not any(params["padding"][axis])
    return Rows(inputs=(axis,) * len(axes), result=axis) if is_within else None


def _unless_along(name: str) -> Callable[[Any, int, int], Rows | None]:
    """Return the rule of an operation that mixes entries only along the axis or axes in the parameter `name`."""

    def rule(equation: Any, axis: int, num_rows: int) -> Rows | None:
        along = equation.params[name]
        is_along = axis in along if isinstance(along, tuple) else axis == along
        return None if is_along else Rows(inputs=(axis,), result=axis)

    return rule


def _stack(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
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


def _dynamic_slice(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    axis, *starts = axes
    if axis is None or any(each is not None for each in starts):
        return None
    if equation.params["slice_sizes"][axis] != equation.invars[0].aval.shape[axis]:
        return None
    return Rows(inputs=(axis, *starts), result=axis, sizes=("slice_sizes", axis))


def _dynamic_update_slice(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
    array, update, *starts = axes
    axis = update if array is None else array
    if axis is None or update not in (axis, None) or any(each is not None for each in starts):
        return None
    if equation.invars[0].aval.shape[axis] != equation.invars[1].aval.shape[axis]:
        return None
    return Rows(inputs=(axis, axis, *starts), result=axis)


def _scatter(equation: Any, axes: Sequence[Axis], num_rows: int) -> Rows | None:
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


def _with_entries(equation: Any, axis: int, num_rows: int) -> Rows | None:
    # Other kinds of keys draw the numbers of several keys from the first one.
    if equation.primitive.name == "random_bits" and str(equation.invars[0].aval.dtype) != "key<fry>":
        return None
    return Rows(inputs=(axis,), result=axis) if axis < equation.outvars[0].aval.ndim else None


def _slice(equation: Any, axis: int, num_rows: int) -> Rows | None:
    params, strides = equation.params, equation.params["strides"]
    is_whole = params["limit_indices"][axis] - params["start_indices"][axis] == equation.invars[0].aval.shape[axis]
    if not is_whole or (strides is not None and strides[axis] != 1):
        return None
    return Rows(inputs=(axis,), result=axis, sizes=("limit_indices", axis))


_UNARY_RULES: dict[str, Callable[[Any, int, int], Rows | None]] = {
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_WITH_ENTRIES, _with_entries),
    "broadcast_in_dim": _broadcast,
    "fft": _fft,
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
_NARY_RULES: dict[str, Callable[[Any, Sequence[Axis], int], Rows | None]] = {
    **dict.fromkeys(COLLECTIVES, _collective),
    **dict.fromkeys(("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"), _along("axis")),
    **dict.fromkeys(_OF_MATRICES, _matrices),
    **dict.fromkeys(_WINDOWS, _window),
    "concatenate": _along("dimension"),
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    **dict.fromkeys(_SCATTERS, _scatter),
    "sort": _along("dimension"),
    "stack": _stack,
}
