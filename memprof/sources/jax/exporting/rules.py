"""The operators of ONNX that compute each primitive of JAX.

A rule receives an operation and returns its result, or a list of several. Broadcasts are left to ONNX, because its
elementwise operators broadcast by themselves: `Value.shape` is the shape of an array in the graph, and its variable in
the jaxpr has the whole shape. Indices are assumed to be in range: JAX drops or clamps others, and ONNX rejects them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from memprof.errors import MemprofError
from memprof.sources.jax.exporting.onnx_graph import INT64, Graph, element_type


@dataclass(frozen=True, slots=True)
class Value:
    """An array of the graph: its name, and its shape in the graph."""

    name: str
    shape: tuple[int, ...]


Known = Any  # a value, or a numpy array that is already known


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A graph, and the scopes of the nodes that are added to it."""

    graph: Graph
    scope: str = ""

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.graph.node(op, *inputs, scope=self.scope, **attributes)[0]

    def value(self, known: Known) -> Value:
        """Return a value of the graph; an array becomes a constant."""
        return known if isinstance(known, Value) else Value(self.graph.constant(np.asarray(known)), np.shape(known))

    def numbers(self, numbers: Sequence[int] | int) -> str:
        """Return the name of a constant with these numbers; ONNX expects shapes and axes in this form."""
        return self.graph.constant(np.array(numbers, np.int64))

    def whole(self, known: Known, shape: Sequence[int]) -> str:
        """Return the name of a value, expanded to its whole shape."""
        value, shape = self.value(known), tuple(shape)
        return value.name if value.shape == shape else self.node("Expand", value.name, self.numbers(shape))

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the same elements in another shape."""
        shape = tuple(shape)
        return value if value.shape == shape else Value(self.node("Reshape", value.name, self.numbers(shape)), shape)

    def transposed(self, value: Value, order: Sequence[int]) -> Value:
        """Return the same elements with the axes in another order."""
        if list(order) == list(range(len(order))):
            return value
        shape = tuple(value.shape[axis] for axis in order)
        return Value(self.node("Transpose", value.name, perm=list(order)), shape)

    def of_each(self, op: str, *values: Known, **attributes: Any) -> Value:
        """Apply an operator that broadcasts."""
        inputs = [self.value(each) for each in values]
        name = self.node(op, *(each.name for each in inputs), **attributes)
        return Value(name, np.broadcast_shapes(*(each.shape for each in inputs)))

    def stacked(self, pieces: Sequence[Known], shape: tuple[int, ...], axis: int = 0) -> Value:
        """Return arrays of one shape, stacked along a new axis."""
        rows = [self.node("Unsqueeze", self.whole(each, shape), self.numbers([axis])) for each in pieces]
        return Value(self.node("Concat", *rows, axis=axis), (*shape[:axis], len(pieces), *shape[axis:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Place):
    """An equation of a jaxpr, and the values of its operands."""

    equation: Any
    values: Sequence[Known]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        params: dict[str, Any] = self.equation.params
        return params

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape of the first result."""
        return tuple(self.equation.outvars[0].aval.shape)

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Return the whole shape of an operand."""
        return tuple(self.equation.invars[number].aval.shape)

    def operand(self, number: int = 0) -> str:
        """Return the name of an operand, expanded to its whole shape."""
        return self.whole(self.values[number], self.shape_of(number))

    def result(self, op: str, *inputs: str, **attributes: Any) -> Value:
        """Apply an operator whose result has the whole shape."""
        return Value(self.node(op, *inputs, **attributes), self.shape)

    def like(self, number: float) -> np.ndarray[Any, Any]:
        """Return a number in the dtype of the first operand."""
        return np.asarray(number, self.equation.invars[0].aval.dtype)

    def cast(self, value: Value, number: int = 0) -> Value:
        """Return a value in the dtype of a result."""
        return self.of_each("Cast", value, to=element_type(self.equation.outvars[number].aval.dtype))

    def indices(self) -> Value:
        """Return the second operand, whose numbers are indices."""
        shape = self.shape_of(1)
        return self.of_each("Cast", Value(self.whole(self.values[1], shape), shape), to=INT64)

    def refusal(self, what: str) -> MemprofError:
        """Return the error for an operation without an operator."""
        where = f" in {self.scope}" if self.scope else ""
        return MemprofError(f"the export to ONNX has no operator for {what}{where}")


Rule = Callable[[Operation], Known]


def _elementwise(op: str, **attributes: Any) -> Rule:
    return lambda at: at.of_each(op, *at.values, **attributes)


def _logical(of_bools: str, of_integers: str) -> Rule:
    return lambda at: at.of_each(of_bools if at.equation.invars[0].aval.dtype == np.bool_ else of_integers, *at.values)


def _reduce(op: str) -> Rule:
    return lambda at: at.result(op, at.operand(), at.numbers(at.params["axes"]), keepdims=0)


def _arg(op: str) -> Rule:
    return lambda at: at.cast(at.result(op, at.operand(), axis=at.params["axes"][0], keepdims=0))


def _select(at: Operation) -> Known:
    which, *cases = at.values
    if at.equation.invars[0].aval.dtype != np.bool_ or len(cases) != 2:
        raise MemprofError("the export to ONNX has no operator for a selection among more than two arrays")
    return at.of_each("Where", which, cases[1], cases[0])


def _cast(at: Operation) -> Known:
    is_same = at.equation.outvars[0].aval.dtype == at.equation.invars[0].aval.dtype
    return at.values[0] if is_same else at.cast(at.values[0])


def _round(at: Operation) -> Known:
    if int(at.params["rounding_method"]) != 1:  # to even, as ONNX does
        raise MemprofError("the export to ONNX only rounds halves to even, but this step rounds them away from zero")
    return at.of_each("Round", *at.values)


def _iota(at: Operation) -> Known:
    axis = at.params["dimension"]
    row = np.arange(at.shape[axis]).astype(at.equation.outvars[0].aval.dtype)
    return row.reshape([size if each == axis else 1 for each, size in enumerate(at.shape)])


def _broadcast(at: Operation) -> Known:
    value, shape = at.value(at.values[0]), [1] * len(at.shape)
    for axis, size in zip(at.params["broadcast_dimensions"], value.shape, strict=True):
        shape[axis] = size
    return at.reshaped(value, shape)


def _reshape(at: Operation) -> Known:
    return at.reshaped(Value(at.operand(), at.shape_of(0)), at.shape)


def _squeeze(at: Operation) -> Known:
    value, gone = at.value(at.values[0]), at.params["dimensions"]
    return at.reshaped(value, [size for axis, size in enumerate(value.shape) if axis not in gone])


def _concatenate(at: Operation) -> Known:
    return at.result("Concat", *map(at.operand, range(len(at.values))), axis=at.params["dimension"])


def _slice(at: Operation) -> Known:
    num_axes = len(at.shape_of(0))
    steps = at.params["strides"] or (1,) * num_axes
    numbers = at.params["start_indices"], at.params["limit_indices"], range(num_axes), steps
    return at.result("Slice", at.operand(), *map(at.numbers, numbers))


def _reverse(at: Operation) -> Known:
    axes = at.params["dimensions"]
    numbers = [-1] * len(axes), [-(2**62)] * len(axes), axes, [-1] * len(axes)
    return at.result("Slice", at.operand(), *map(at.numbers, numbers))


def _split(at: Operation) -> Known:
    sizes, results = at.params["sizes"], at.equation.outvars
    inputs = at.operand(), at.numbers(sizes)
    names = at.graph.node("Split", *inputs, scope=at.scope, num_outputs=len(sizes), axis=at.params["axis"])
    return [Value(name, tuple(var.aval.shape)) for name, var in zip(names, results, strict=True)]


def _pad(at: Operation) -> Known:
    config = at.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise MemprofError("the export to ONNX has no operator for padding that is negative or between elements")
    numbers = [low for low, _, _ in config] + [high for _, high, _ in config]
    return at.result("Pad", at.operand(), at.numbers(numbers), at.value(at.values[1]).name)


def _cumulative_sum(at: Operation) -> Known:
    axis = at.numbers(at.params["axis"])
    return at.result("CumSum", at.operand(), axis, reverse=int(at.params["reverse"]))


def _top_k(at: Operation) -> Known:
    inputs = at.operand(), at.numbers(at.shape[-1:])
    found, places = at.graph.node("TopK", *inputs, scope=at.scope, num_outputs=2, axis=-1)
    return [Value(found, at.shape), at.cast(Value(places, at.shape), 1)]


def _product(at: Operation) -> Known:
    """Lower a product of arrays to a MatMul of `[batch..., m, k]` by `[batch..., k, n]`."""
    (contracted, batch), shapes = at.params["dimension_numbers"], (at.shape_of(0), at.shape_of(1))
    lhs, rhs = (Value(at.operand(number), shape) for number, shape in enumerate(shapes))
    is_narrow = [var.aval.dtype != at.equation.outvars[0].aval.dtype for var in at.equation.invars]
    # If JAX's result is wider, cast the operands: ONNX's result has their type.
    lhs, rhs = (at.cast(each) if narrow else each for each, narrow in zip((lhs, rhs), is_narrow, strict=True))
    free = [
        [axis for axis in range(len(shape)) if axis not in (*contracted[side], *batch[side])]
        for side, shape in enumerate(shapes)
    ]
    sizes = [[shape[axis] for axis in free[side]] for side, shape in enumerate(shapes)]
    batch_sizes, depth = [shapes[0][axis] for axis in batch[0]], prod(shapes[0][axis] for axis in contracted[0])
    lhs = at.transposed(lhs, [*batch[0], *free[0], *contracted[0]])
    rhs = at.transposed(rhs, [*batch[1], *contracted[1], *free[1]])
    rows = sizes[0] if not batch_sizes and sizes[0] else [prod(sizes[0])]  # MatMul by a matrix accepts any leading axes
    lhs = at.reshaped(lhs, [*batch_sizes, *rows, depth])
    rhs = at.reshaped(rhs, [*batch_sizes, depth, prod(sizes[1])])
    result = Value(at.node("MatMul", lhs.name, rhs.name), (*batch_sizes, *rows, prod(sizes[1])))
    return at.reshaped(result, at.shape)


def _gather(at: Operation) -> Known:
    """Gather rows along one axis, as `jnp.take` and `x[indices]` do, or slices at leading indices."""
    numbers, shape, indices = at.params["dimension_numbers"], at.shape_of(0), at.shape_of(1)[:-1]
    axis = numbers.start_index_map[0] if len(numbers.start_index_map) == 1 else -1
    sizes = tuple(1 if each == axis else size for each, size in enumerate(shape))
    if _is_at_leading_indices(at):
        where = at.indices()
        return at.result("GatherND", at.operand(), where.name, batch_dims=len(numbers.operand_batching_dims))
    if numbers.collapsed_slice_dims != (axis,) or at.params["slice_sizes"] != sizes or numbers.operand_batching_dims:
        raise at.refusal("a gather along several axes")
    rows = at.reshaped(Value(at.whole(at.values[1], (*indices, 1)), (*indices, 1)), indices)
    shape = (*shape[:axis], *indices, *shape[axis + 1 :])
    result = Value(at.node("Gather", at.operand(), rows.name, axis=axis), shape)
    kept = [*range(axis), *range(axis + len(indices), len(shape))]  # ONNX's axes of the slices
    slices, others = iter(kept), iter(each for each in range(len(shape)) if each not in kept)
    order = [next(slices) if each in numbers.offset_dims else next(others) for each in range(len(shape))]
    return at.transposed(result, order)


def _is_at_leading_indices(at: Operation) -> bool:
    """Whether indices on all leading axes gather whole slices, as in `x[i, j]` and `jnp.take_along_axis`."""
    numbers, shape = at.params["dimension_numbers"], at.shape_of(0)
    num_batched, num_indices = len(numbers.operand_batching_dims), at.shape_of(1)[-1]
    first = num_batched + num_indices
    return bool(
        numbers.operand_batching_dims == numbers.start_indices_batching_dims == tuple(range(num_batched))
        and numbers.start_index_map == numbers.collapsed_slice_dims == tuple(range(num_batched, first))
        and at.params["slice_sizes"] == (*[1] * first, *shape[first:])
        and numbers.offset_dims == tuple(range(len(at.shape) - len(shape[first:]), len(at.shape)))
        and first > 1
    )


def _scatter(reduction: str) -> Rule:
    """Return the rule that writes slices at indices of the leading axes, as `x.at[i, j].set(...)` writes a cache."""

    def rule(at: Operation) -> Known:
        numbers = at.params["dimension_numbers"]
        shape, indices, updates = map(at.shape_of, range(3))
        num_axes, num_indices = indices[-1], len(indices) - 1
        is_plain = (
            numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == tuple(range(num_axes))
            and numbers.update_window_dims == tuple(range(num_indices, len(updates)))
            and updates[num_indices:] == shape[num_axes:]
            and not numbers.operand_batching_dims
        )
        if not is_plain:
            raise at.refusal("a scatter of parts of slices")
        where = at.indices()
        return at.result("ScatterND", at.operand(), where.name, at.operand(2), reduction=reduction)

    return rule


_UNARY = {
    name: name.capitalize()
    for name in (
        *("abs", "neg", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
        *("sqrt", "erf", "floor", "ceil", "sign", "asin", "acos", "atan"),
    )
} | {"logistic": "Sigmoid"}
_BINARY = {
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "max": "Max",
    "min": "Min",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
_UNCHANGED = (
    *("stop_gradient", "copy", "copy_p", "name", "optimization_barrier", "sharding_constraint", "device_put"),
    *("reduce_precision", "convert_layout", "layout_constraint"),
)
RULES: dict[str, Rule] = {
    **{name: _elementwise(op) for name, op in (_UNARY | _BINARY).items()},
    **dict.fromkeys(_UNCHANGED, lambda at: list(at.values)),
    **{f"reduce_{name}": _reduce(f"Reduce{name.capitalize()}") for name in ("sum", "max", "min", "prod")},
    "and": _logical("And", "BitwiseAnd"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "broadcast_in_dim": _broadcast,
    "clamp": lambda at: at.of_each("Min", at.of_each("Max", at.values[1], at.values[0]), at.values[2]),
    "concatenate": _concatenate,
    "convert_element_type": _cast,
    "cumsum": _cumulative_sum,
    "dot_general": _product,
    "erfc": lambda at: at.of_each("Sub", at.like(1), at.of_each("Erf", *at.values)),
    "exp2": lambda at: at.of_each("Pow", at.like(2), *at.values),
    "expand_dims": _reshape,
    "expm1": lambda at: at.of_each("Sub", at.of_each("Exp", *at.values), at.like(1)),
    "gather": _gather,
    "integer_pow": lambda at: at.of_each("Pow", *at.values, at.like(at.params["y"])),
    "iota": _iota,
    "log1p": lambda at: at.of_each("Log", at.of_each("Add", *at.values, at.like(1))),
    "ne": lambda at: at.of_each("Not", at.of_each("Equal", *at.values)),
    "not": _logical("Not", "BitwiseNot"),
    "or": _logical("Or", "BitwiseOr"),
    "pad": _pad,
    "reduce_and": _reduce("ReduceMin"),
    "reduce_or": _reduce("ReduceMax"),
    "rem": _elementwise("Mod", fmod=1),
    "reshape": _reshape,
    "rev": _reverse,
    "round": _round,
    "rsqrt": lambda at: at.of_each("Reciprocal", at.of_each("Sqrt", *at.values)),
    "scatter": _scatter("none"),
    "scatter-add": _scatter("add"),
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": lambda at: at.of_each("Mul", *at.values, *at.values),
    "squeeze": _squeeze,
    "stack": lambda at: at.stacked(at.values, at.shape_of(0), at.params["axis"]),
    "top_k": _top_k,
    "transpose": lambda at: at.transposed(at.value(at.values[0]), at.params["permutation"]),
    "xor": _logical("Xor", "BitwiseXor"),
}
