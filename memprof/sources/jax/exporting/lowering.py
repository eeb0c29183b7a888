"""Lowering of a jaxpr to an ONNX graph: a rule for each primitive, with inlined calls and unrolled scans.

The names of nodes begin with JAX's scopes (`layers_0/attention/MatMul`), so that an engine's layers can be mapped back.
Broadcasts are left to ONNX, because its elementwise operators broadcast by themselves: `Value.shape` is the shape of an
array in the graph, and its variable in the jaxpr has the whole shape. Values that depend only on constants are computed
here. Indices are assumed to be in range: JAX drops or clamps others, and ONNX rejects them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from jax.extend import core

from memprof.errors import MemprofError
from memprof.sources.jax.exporting.onnx_graph import INT64, Graph, element_type
from memprof.sources.jax.roles.walk import scan_layout
from memprof.sources.jax.tracing import jit_adapter

_MAX_CONSTANT_ELEMENTS = 1 << 16  # the model computes larger ones
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(frozen=True, slots=True)
class Value:
    """An array of the graph: its name, and its shape in the graph."""

    name: str
    shape: tuple[int, ...]


_Known = Any  # a value, or a numpy array that is already known
_Rule = Callable[["Lowering", Any, "list[_Known]", str], "list[_Known]"]


class Lowering:
    """Adds the operations of jaxprs to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def jaxpr(self, closed: core.ClosedJaxpr, args: Sequence[_Known], scope: str = "") -> list[_Known]:
        """Add the operations that the results of a jaxpr need.

        Args:
            args: values of the graph, or arrays.
            scope: the scopes around it.

        Raises:
            MemprofError: a primitive has no rule.
        """
        jaxpr, consts = closed.jaxpr, [np.asarray(each) for each in closed.consts]
        known: dict[Any, _Known] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))

        def value(atom: Any) -> _Known:
            return np.asarray(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in _needed(jaxpr):
            inside = "/".join(part for part in (scope, str(equation.source_info.name_stack)) if part)
            results = self._equation(equation, [value(atom) for atom in equation.invars], inside)
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def whole(self, known: _Known, shape: Sequence[int], scope: str = "") -> str:
        """Return the name of a value, expanded to its whole shape."""
        value, shape = self.value(known), tuple(shape)
        if value.shape == shape:
            return value.name
        return self.node("Expand", value.name, self.shape(shape), scope=scope)

    def value(self, known: _Known) -> Value:
        """Return a value of the graph; an array becomes a constant."""
        return known if isinstance(known, Value) else Value(self.graph.constant(np.asarray(known)), np.shape(known))

    def node(self, op: str, *inputs: str, scope: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.graph.node(op, *inputs, scope=scope, **attributes)[0]

    def shape(self, numbers: Sequence[int]) -> str:
        """Return the name of a constant with these numbers; ONNX expects shapes and axes in this form."""
        return self.graph.constant(np.array(numbers, np.int64))

    def reshaped(self, value: Value, shape: Sequence[int], scope: str) -> Value:
        """Return the same elements in another shape."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        return Value(self.node("Reshape", value.name, self.shape(shape), scope=scope), shape)

    def transposed(self, value: Value, order: Sequence[int], scope: str) -> Value:
        """Return the same elements with the axes in another order."""
        if list(order) == list(range(len(order))):
            return value
        shape = tuple(value.shape[axis] for axis in order)
        return Value(self.node("Transpose", value.name, scope=scope, perm=list(order)), shape)

    def _equation(self, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, values, scope)
        inner = next((equation.params[key] for key in _CALLS if key in equation.params), None)
        if inner is not None and name not in ("while", "shard_map"):
            closed = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
            return self.jaxpr(closed, values, scope)
        num_elements = sum(prod(var.aval.shape) for var in equation.outvars)
        if num_elements <= _MAX_CONSTANT_ELEMENTS and not any(isinstance(each, Value) for each in values):
            return [np.asarray(each) for each in jit_adapter.bound(equation, values, equation.params)]
        if name not in RULES:
            where = f" in {scope}" if scope else ""
            raise MemprofError(
                f"the export to ONNX has no operator for JAX's primitive {name}{where}: leave out the technique or "
                "setting that introduces it"
            )
        return RULES[name](self, equation, values, scope)

    def _scan(self, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        """Unroll a loop. The scopes of its iterations are numbered."""
        body, length, is_reverse = (equation.params[name] for name in ("jaxpr", "length", "reverse"))
        num_consts, num_carry = scan_layout(equation, body.jaxpr)
        first_stacked = num_consts + num_carry
        consts, carry = values[:num_consts], values[num_consts:first_stacked]
        turns: list[list[_Known]] = []
        for number in reversed(range(length)) if is_reverse else range(length):
            inside = f"{scope or 'loop'}_{number}"
            pieces = [
                self._piece(each, number, tuple(var.aval.shape), inside)
                for each, var in zip(values[first_stacked:], equation.invars[first_stacked:], strict=True)
            ]
            results = self.jaxpr(body, [*consts, *carry, *pieces], inside)
            carry = results[:num_carry]
            turns.append(results[num_carry:])
        if is_reverse:
            turns.reverse()
        stacks = zip(zip(*turns, strict=True), body.jaxpr.outvars[num_carry:], strict=True)
        return [*carry, *(self._stack(pieces, var.aval, scope) for pieces, var in stacks)]

    def _piece(self, known: _Known, number: int, shape: tuple[int, ...], scope: str) -> _Known:
        if not isinstance(known, Value):
            return known[number]
        index = self.graph.constant(np.array(number, np.int64))
        return Value(self.node("Gather", self.whole(known, shape), index, scope=scope, axis=0), shape[1:])

    def _stack(self, pieces: Sequence[_Known], aval: Any, scope: str) -> Value:
        rows = [
            self.node("Unsqueeze", self.whole(each, aval.shape, scope), self.shape([0]), scope=scope) for each in pieces
        ]
        return Value(self.node("Concat", *rows, scope=scope, axis=0), (len(pieces), *aval.shape))


def _needed(jaxpr: core.Jaxpr) -> list[Any]:
    """Return the equations that a result depends on, in order."""
    read, needed = {id(atom) for atom in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in read for var in equation.outvars):
            read.update(id(atom) for atom in equation.invars)
            needed.append(equation)
    return needed[::-1]


def _shape(equation: Any) -> tuple[int, ...]:
    return tuple(equation.outvars[0].aval.shape)


def _in_shape(equation: Any, number: int = 0) -> tuple[int, ...]:
    return tuple(equation.invars[number].aval.shape)


def _elementwise(op: str, **attributes: Any) -> _Rule:
    """Return the rule of an operator that broadcasts."""

    def rule(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        return [_of_each(lower, op, values, scope, **attributes)]

    return rule


def _of_each(lower: Lowering, op: str, values: Sequence[_Known], scope: str, **attributes: Any) -> Value:
    inputs = [lower.value(each) for each in values]
    name = lower.node(op, *(each.name for each in inputs), scope=scope, **attributes)
    return Value(name, np.broadcast_shapes(*(each.shape for each in inputs)))


def _logical(of_bools: str, of_integers: str) -> _Rule:
    def rule(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        is_bool = equation.invars[0].aval.dtype == np.bool_
        return [_of_each(lower, of_bools if is_bool else of_integers, values, scope)]

    return rule


def _like(equation: Any, number: float) -> np.ndarray[Any, Any]:
    """Return a number in the dtype of the first operand."""
    return np.asarray(number, equation.invars[0].aval.dtype)


def _square(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Mul", [values[0], values[0]], scope)]


def _not_equal(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Not", [_of_each(lower, "Equal", values, scope)], scope)]


def _rsqrt(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Reciprocal", [_of_each(lower, "Sqrt", values, scope)], scope)]


def _log1p(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Log", [_of_each(lower, "Add", [values[0], _like(equation, 1)], scope)], scope)]


def _expm1(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Sub", [_of_each(lower, "Exp", values, scope), _like(equation, 1)], scope)]


def _erfc(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Sub", [_like(equation, 1), _of_each(lower, "Erf", values, scope)], scope)]


def _exp2(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Pow", [_like(equation, 2), values[0]], scope)]


def _integer_pow(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [_of_each(lower, "Pow", [values[0], _like(equation, equation.params["y"])], scope)]


def _clamp(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    low, value, high = values
    return [_of_each(lower, "Min", [_of_each(lower, "Max", [value, low], scope), high], scope)]


def _select(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    which, *cases = values
    if equation.invars[0].aval.dtype != np.bool_ or len(cases) != 2:
        raise MemprofError("the export to ONNX has no operator for a selection among more than two arrays")
    return [_of_each(lower, "Where", [which, cases[1], cases[0]], scope)]


def _same(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return values


def _cast(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    dtype = equation.outvars[0].aval.dtype
    if dtype == equation.invars[0].aval.dtype:
        return values
    return [_of_each(lower, "Cast", values, scope, to=element_type(dtype))]


def _round(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    if int(equation.params["rounding_method"]) != 1:  # to even, as ONNX does
        raise MemprofError("the export to ONNX only rounds halves to even, but this step rounds them away from zero")
    return [_of_each(lower, "Round", values, scope)]


def _iota(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    shape, axis = _shape(equation), equation.params["dimension"]
    row = np.arange(shape[axis]).astype(equation.outvars[0].aval.dtype)
    return [row.reshape([size if each == axis else 1 for each, size in enumerate(shape)])]


def _broadcast(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    value, shape = lower.value(values[0]), [1] * len(_shape(equation))
    for axis, size in zip(equation.params["broadcast_dimensions"], value.shape, strict=True):
        shape[axis] = size
    return [lower.reshaped(value, shape, scope)]


def _reshape(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    value = Value(lower.whole(values[0], _in_shape(equation), scope), _in_shape(equation))
    return [lower.reshaped(value, _shape(equation), scope)]


def _squeeze(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    value, gone = lower.value(values[0]), equation.params["dimensions"]
    return [lower.reshaped(value, [size for axis, size in enumerate(value.shape) if axis not in gone], scope)]


def _transpose(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    return [lower.transposed(lower.value(values[0]), equation.params["permutation"], scope)]


def _concatenate(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    names = [lower.whole(each, _in_shape(equation, number), scope) for number, each in enumerate(values)]
    return [Value(lower.node("Concat", *names, scope=scope, axis=equation.params["dimension"]), _shape(equation))]


def _stack_rule(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    axis = equation.params["axis"]
    rows = [
        lower.node("Unsqueeze", lower.whole(each, _in_shape(equation), scope), lower.shape([axis]), scope=scope)
        for each in values
    ]
    return [Value(lower.node("Concat", *rows, scope=scope, axis=axis), _shape(equation))]


def _slice(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    params, shape = equation.params, _in_shape(equation)
    steps = params["strides"] or (1,) * len(shape)
    numbers = [params["start_indices"], params["limit_indices"], range(len(shape)), steps]
    name = lower.node("Slice", lower.whole(values[0], shape, scope), *map(lower.shape, numbers), scope=scope)
    return [Value(name, _shape(equation))]


def _reverse(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    axes = equation.params["dimensions"]
    numbers = [[-1] * len(axes), [-(2**62)] * len(axes), axes, [-1] * len(axes)]
    whole = lower.whole(values[0], _in_shape(equation), scope)
    return [Value(lower.node("Slice", whole, *map(lower.shape, numbers), scope=scope), _shape(equation))]


def _split(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    names = lower.graph.node(
        "Split",
        lower.whole(values[0], _in_shape(equation), scope),
        lower.shape(sizes),
        scope=scope,
        num_outputs=len(sizes),
        axis=axis,
    )
    return [Value(name, tuple(var.aval.shape)) for name, var in zip(names, equation.outvars, strict=True)]


def _pad(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise MemprofError("the export to ONNX has no operator for padding that is negative or between elements")
    numbers = [low for low, _, _ in config] + [high for _, high, _ in config]
    whole = lower.whole(values[0], _in_shape(equation), scope)
    name = lower.node("Pad", whole, lower.shape(numbers), lower.value(values[1]).name, scope=scope)
    return [Value(name, _shape(equation))]


def _reduce(op: str) -> _Rule:
    def rule(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        whole = lower.whole(values[0], _in_shape(equation), scope)
        name = lower.node(op, whole, lower.shape(equation.params["axes"]), scope=scope, keepdims=0)
        return [Value(name, _shape(equation))]

    return rule


def _arg(op: str) -> _Rule:
    def rule(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        (axis,) = equation.params["axes"]
        whole = lower.whole(values[0], _in_shape(equation), scope)
        found = Value(lower.node(op, whole, scope=scope, axis=axis, keepdims=0), _shape(equation))
        return [_of_each(lower, "Cast", [found], scope, to=element_type(equation.outvars[0].aval.dtype))]

    return rule


def _cumulative_sum(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    axis = lower.graph.constant(np.array(equation.params["axis"], np.int64))
    whole = lower.whole(values[0], _in_shape(equation), scope)
    name = lower.node("CumSum", whole, axis, scope=scope, reverse=int(equation.params["reverse"]))
    return [Value(name, _shape(equation))]


def _top_k(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    shape = tuple(equation.outvars[0].aval.shape)
    whole, size = lower.whole(values[0], _in_shape(equation), scope), lower.shape([shape[-1]])
    found, places = lower.graph.node("TopK", whole, size, scope=scope, num_outputs=2, axis=-1)
    index_type = element_type(equation.outvars[1].aval.dtype)
    return [Value(found, shape), _of_each(lower, "Cast", [Value(places, shape)], scope, to=index_type)]


def _product(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    """Lower a product of arrays to a MatMul of `[batch..., m, k]` by `[batch..., k, n]`."""
    (contracted, batch), shapes = equation.params["dimension_numbers"], (_in_shape(equation), _in_shape(equation, 1))
    dtype = equation.outvars[0].aval.dtype
    operands = [Value(lower.whole(each, shape, scope), shape) for each, shape in zip(values, shapes, strict=True)]
    for number, var in enumerate(equation.invars):
        if var.aval.dtype != dtype:  # JAX's result is wider; ONNX's has the type of the operands
            operands[number] = _of_each(lower, "Cast", [operands[number]], scope, to=element_type(dtype))
    lhs, rhs = operands
    free = [
        [axis for axis in range(len(shape)) if axis not in (*contracted[side], *batch[side])]
        for side, shape in enumerate(shapes)
    ]
    sizes = [[shape[axis] for axis in free[side]] for side, shape in enumerate(shapes)]
    batch_sizes, depth = [shapes[0][axis] for axis in batch[0]], prod(shapes[0][axis] for axis in contracted[0])
    lhs = lower.transposed(lhs, [*batch[0], *free[0], *contracted[0]], scope)
    rhs = lower.transposed(rhs, [*batch[1], *contracted[1], *free[1]], scope)
    rows = sizes[0] if not batch_sizes and sizes[0] else [prod(sizes[0])]  # MatMul by a matrix accepts any leading axes
    lhs = lower.reshaped(lhs, [*batch_sizes, *rows, depth], scope)
    rhs = lower.reshaped(rhs, [*batch_sizes, depth, prod(sizes[1])], scope)
    shape = (*batch_sizes, *rows, prod(sizes[1]))
    result = Value(lower.node("MatMul", lhs.name, rhs.name, scope=scope), shape)
    return [lower.reshaped(result, _shape(equation), scope)]


def _gather(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
    """Gather rows along one axis, as `jnp.take` and `x[indices]` do, or slices at leading indices."""
    numbers, shape = equation.params["dimension_numbers"], _in_shape(equation)
    indices = _in_shape(equation, 1)[:-1]
    axis = numbers.start_index_map[0] if len(numbers.start_index_map) == 1 else -1
    sizes = tuple(1 if each == axis else size for each, size in enumerate(shape))
    if _is_at_leading_indices(equation):
        return [_gathered_slices(lower, equation, values, scope)]
    if (
        numbers.collapsed_slice_dims != (axis,)
        or equation.params["slice_sizes"] != sizes
        or numbers.operand_batching_dims
    ):
        raise MemprofError(f"the export to ONNX has no operator for a gather along several axes{_in(scope)}")
    where = Value(lower.whole(values[1], (*indices, 1), scope), (*indices, 1))
    rows = lower.reshaped(where, indices, scope)
    name = lower.node("Gather", lower.whole(values[0], shape, scope), rows.name, scope=scope, axis=axis)
    result = Value(name, (*shape[:axis], *indices, *shape[axis + 1 :]))
    kept = [*range(axis), *range(axis + len(indices), len(result.shape))]  # ONNX's axes of the slices
    order, others = [], iter(each for each in range(len(result.shape)) if each not in kept)
    slices = iter(kept)
    for each in range(len(result.shape)):
        order.append(next(slices) if each in numbers.offset_dims else next(others))
    return [lower.transposed(result, order, scope)]


def _is_at_leading_indices(equation: Any) -> bool:
    """Whether indices on all leading axes gather whole slices, as in `x[i, j]` and `jnp.take_along_axis`."""
    numbers, shape = equation.params["dimension_numbers"], _in_shape(equation)
    num_batched, num_indices = len(numbers.operand_batching_dims), _in_shape(equation, 1)[-1]
    first = num_batched + num_indices
    return bool(
        numbers.operand_batching_dims == numbers.start_indices_batching_dims == tuple(range(num_batched))
        and numbers.start_index_map == numbers.collapsed_slice_dims == tuple(range(num_batched, first))
        and equation.params["slice_sizes"] == (*[1] * first, *shape[first:])
        and numbers.offset_dims == tuple(range(len(_shape(equation)) - len(shape[first:]), len(_shape(equation))))
        and first > 1
    )


def _gathered_slices(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> Value:
    indices = _in_shape(equation, 1)
    where = _of_each(lower, "Cast", [Value(lower.whole(values[1], indices, scope), indices)], scope, to=INT64)
    num_batched = len(equation.params["dimension_numbers"].operand_batching_dims)
    whole = lower.whole(values[0], _in_shape(equation), scope)
    return Value(lower.node("GatherND", whole, where.name, scope=scope, batch_dims=num_batched), _shape(equation))


def _scatter(reduction: str) -> _Rule:
    """Return the rule that writes slices at indices of the leading axes, as `x.at[i, j].set(...)` writes a cache."""

    def rule(lower: Lowering, equation: Any, values: list[_Known], scope: str) -> list[_Known]:
        numbers = equation.params["dimension_numbers"]
        shape, indices, updates = (_in_shape(equation, number) for number in range(3))
        num_axes, num_indices = indices[-1], len(indices) - 1
        leading = tuple(range(num_axes))
        windows = tuple(range(num_indices, len(updates)))
        is_plain = (
            numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == leading
            and numbers.update_window_dims == windows
            and updates[num_indices:] == shape[num_axes:]
            and not numbers.operand_batching_dims
        )
        if not is_plain:
            raise MemprofError(f"the export to ONNX has no operator for a scatter of parts of slices{_in(scope)}")
        where = _of_each(lower, "Cast", [Value(lower.whole(values[1], indices, scope), indices)], scope, to=INT64)
        whole = [lower.whole(values[number], each, scope) for number, each in ((0, shape), (2, updates))]
        return [Value(lower.node("ScatterND", whole[0], where.name, whole[1], scope=scope, reduction=reduction), shape)]

    return rule


def _in(scope: str) -> str:
    return f" in {scope}" if scope else ""


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
RULES: dict[str, _Rule] = {
    **{name: _elementwise(op) for name, op in (_UNARY | _BINARY).items()},
    **dict.fromkeys(_UNCHANGED, _same),
    **{f"reduce_{name}": _reduce(f"Reduce{name.capitalize()}") for name in ("sum", "max", "min", "prod")},
    "and": _logical("And", "BitwiseAnd"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "convert_element_type": _cast,
    "cumsum": _cumulative_sum,
    "dot_general": _product,
    "erfc": _erfc,
    "exp2": _exp2,
    "expand_dims": _reshape,
    "expm1": _expm1,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "log1p": _log1p,
    "ne": _not_equal,
    "not": _logical("Not", "BitwiseNot"),
    "or": _logical("Or", "BitwiseOr"),
    "pad": _pad,
    "reduce_and": _reduce("ReduceMin"),
    "reduce_or": _reduce("ReduceMax"),
    "rem": _elementwise("Mod", fmod=1),
    "reshape": _reshape,
    "rev": _reverse,
    "round": _round,
    "rsqrt": _rsqrt,
    "scatter": _scatter("none"),
    "scatter-add": _scatter("add"),
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": _square,
    "squeeze": _squeeze,
    "stack": _stack_rule,
    "top_k": _top_k,
    "transpose": _transpose,
    "xor": _logical("Xor", "BitwiseXor"),
}
