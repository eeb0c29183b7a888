"""How a part of the rows computes an operation: with its rows alone, or with its share of sums over all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from memprof.sources.jax.checkpointing.pieces import Piece, State, Total, axis_of
from memprof.sources.jax.checkpointing.rows import Axis, is_known, rows_of
from memprof.sources.jax.tracing import jit_adapter

_OURS = Path(__file__).parents[3]

# Operations that are linear in an input: the result of a sum is the sum of the results.
_LINEAR = frozenset(
    "broadcast_in_dim copy copy_p cumsum imag name neg real reduce_sum reshape rev sharding_constraint"
    " slice squeeze stop_gradient tile transpose".split()
)
_PRODUCTS = frozenset({"dot_general", "mul"})
_ADDITIONS = frozenset({"add", "add_any", "concatenate", "pad", "stack", "sub"})


class UndividedError(Exception):
    """A function cannot be divided. The message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """How a part computes an equation: the states of its inputs and results, and a function from one to the other."""

    inputs: tuple[State, ...]
    results: tuple[State, ...]
    run: Callable[[Sequence[Any], Piece], list[Any]]


def of_rows(equation: Any, states: Sequence[State], num_rows: int) -> Action:
    """Return the action of an equation that reads rows along an axis of some of its inputs.

    Raises:
        UndividedError: it mixes the rows, or memprof does not know the operation.
    """
    axes: list[Axis] = [axis_of(each) for each in states]
    rows = rows_of(equation, axes, num_rows)
    if rows is None and equation.primitive.name == "scatter-add" and (added := _of_added(equation, states)) is not None:
        return added
    if rows is None:
        mixes = "mixes the rows" if is_known(equation.primitive.name) else "is an operation that memprof cannot divide"
        raise UndividedError(f"{named(equation)} {mixes}")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        return jit_adapter.bound(equation, [*values], rows.params(equation.params, piece.part_rows, piece.num_rows))

    result = Total.SUM if rows.result is None else rows.result
    return Action(inputs=rows.inputs, results=(result,) * len(equation.outvars), run=run)


def _of_added(scatter: Any, states: Sequence[State]) -> Action | None:
    """Return the action of a scatter that adds rows to entries of one array, as in the gradient of a table, or None."""
    window = scatter.params["dimension_numbers"].update_window_dims
    in_batch = dict(enumerate(each for each in range(scatter.invars[2].aval.ndim) if each not in window))
    array, indices, _ = states
    if array is not None or indices not in in_batch:
        return None
    return Action(
        inputs=(Total.SUM, indices, in_batch[indices]),
        results=(Total.SUM,),
        run=lambda values, piece: jit_adapter.bound(scatter, [*values], scatter.params),
    )


def of_own_rows(equation: Any, axis: State, of_indices: int) -> Action:
    """Return the action of a gather in which each row of indices looks up its own row: that of the part."""
    numbers = equation.params["dimension_numbers"]
    in_batch = [each for each in range(equation.outvars[0].aval.ndim) if each not in numbers.offset_dims]

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        array, indices = values
        own = jax.lax.broadcasted_iota(indices.dtype, indices.shape, of_indices)
        columns = jax.lax.broadcasted_iota(indices.dtype, indices.shape, indices.ndim - 1)
        of_part = jnp.where(columns == list(numbers.start_index_map).index(axis), own, indices)
        return jit_adapter.bound(equation, [array, of_part], equation.params)

    return Action(inputs=(axis, of_indices), results=(in_batch[of_indices],), run=run)


def of_sums(equation: Any, states: Sequence[State]) -> Action:
    """Return the action of an equation that reads sums: if it is linear in them, a part computes its share."""
    name, is_sum = equation.primitive.name, [each is Total.SUM for each in states]
    inputs = tuple(states)
    if any(isinstance(each, int) for each in states):
        raise UndividedError(f"{named(equation)} combines a sum over all rows with each row")
    if name in _ADDITIONS:
        inputs = (Total.SUM,) * len(states)
    elif name == "select_n" and not is_sum[0]:
        inputs = (None, *(Total.SUM,) * (len(states) - 1))
    elif not (
        (name in _LINEAR and is_sum[0] and sum(is_sum) == 1)
        or (name in _PRODUCTS and sum(is_sum) == 1)
        or (name == "div" and is_sum == [True, False] and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.inexact))
        or (name == "convert_element_type" and jnp.issubdtype(equation.params["new_dtype"], jnp.inexact))
    ):
        raise UndividedError(f"{named(equation)} is not linear in a sum over the rows")
    return Action(
        inputs=inputs,
        results=(Total.SUM,) * len(equation.outvars),
        run=lambda values, piece: jit_adapter.bound(equation, [*values], equation.params),
    )


def named(equation: Any) -> str:
    """Return the name of an operation, with its line in the user's code."""
    lines = [(Path(file), line) for _, file, line in jit_adapter.calls_to(equation)]
    places = [f" ({file.name}:{line})" for file, line in lines if _OURS not in file.parents]
    return f"{equation.primitive.name}{places[-1] if places else ''}"
