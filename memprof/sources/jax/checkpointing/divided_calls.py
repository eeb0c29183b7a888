"""How a part of the rows computes a function within a function, such as the body of a scan or a branch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.actions import Action, UndividedError, named
from memprof.sources.jax.checkpointing.evaluation import without_jits, without_rules
from memprof.sources.jax.checkpointing.pieces import Piece, State, Total, axis_of, moved
from memprof.sources.jax.tracing import jit_adapter


class _Divided(Protocol):
    """The inner function, divided (`division.Division`)."""

    results: list[State]

    def part(self, inputs: Sequence[Any], piece: Piece, wanted: Sequence[Any], outside: dict[Any, Any]) -> list[Any]:
        """Compute a part of the rows."""


# Divides a function, by the states of its constants and inputs and the number of rows.
_Divide = Callable[[core.Jaxpr, Sequence[State], int], _Divided]


def _scan(equation: Any, states: Sequence[State], num_rows: int, divide: _Divide) -> Action:
    params = equation.params
    body = without_jits(params["jaxpr"])
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    consts, carry = [*states[:num_consts]], [*states[num_consts : num_consts + num_carried]]
    stacked = states[num_consts + num_carried :]
    if along := [each for each in stacked if axis_of(each) == 0]:
        return _map(equation, [*consts, *carry], along[0])
    inner = [moved(each, -1) for each in stacked]
    of_body = [None] * len(body.consts)
    while True:
        division = divide(body.jaxpr, [*of_body, *consts, *carry, *inner], num_rows)
        merged = [_merged(*each) for each in zip(carry, division.results[:num_carried], strict=True)]
        if merged == carry:
            break
        carry = merged

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        given = [*body.consts, *values[:num_consts]]

        def iteration(carried: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
            results = division.part([*given, *carried, *rows], piece, body.jaxpr.outvars, {})
            after = zip(results[:num_carried], division.results[:num_carried], carry, strict=True)
            return [piece.taken(*each) for each in after], results[num_carried:]

        start, rows = [*values[num_consts : num_consts + num_carried]], [*values[num_consts + num_carried :]]
        carried, made = jax.lax.scan(
            iteration, start, rows, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
        )
        return [*carried, *made]

    made = [moved(each, 1) for each in division.results[num_carried:]]
    return Action(inputs=(*consts, *carry, *stacked), results=(*carry, *made), run=run)


def _map(equation: Any, others: Sequence[State], along: State) -> Action:
    """Return the action of a scan over the rows that carries nothing, as `jax.lax.map` makes it.

    Args:
        along: the state of what it iterates over.
    """
    params, (num_consts, num_carried) = equation.params, jit_adapter.scan_layout(equation)
    if num_carried or any(each is not None for each in others):
        raise UndividedError(f"{named(equation)} runs over the rows, and carries values from one to the next")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        length = params["length"] // piece.num_parts
        return jit_adapter.bound(equation, [*values], {**params, "length": length})

    inputs = (*others, *(along,) * (len(equation.invars) - num_consts))
    return Action(inputs=inputs, results=(along,) * len(equation.outvars), run=run)


def _merged(before: State, after: State) -> State:
    """Return the state of a value that may have two, such as before and after an iteration."""
    if before is not None and after is not None and before != after:
        raise UndividedError("one value has rows along two axes, or both rows and their sums")
    return after if before is None else before


def _cond(equation: Any, states: Sequence[State], num_rows: int, divide: _Divide) -> Action:
    if states[0] is not None:
        raise UndividedError(f"{named(equation)} chooses a branch for each row")
    branches = [without_jits(each) for each in equation.params["branches"]]
    divisions = [divide(each.jaxpr, [*[None] * len(each.consts), *states[1:]], num_rows) for each in branches]
    results = [each.results for each in divisions]
    merged = [functools.reduce(_merged, of_branches) for of_branches in zip(*results, strict=True)]

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        def branch(closed: core.ClosedJaxpr, division: _Divided) -> Callable[..., list[Any]]:
            def part(*values: Any) -> list[Any]:
                found = division.part([*closed.consts, *values], piece, closed.jaxpr.outvars, {})
                return [piece.taken(*each) for each in zip(found, division.results, merged, strict=True)]

            return part

        index, *operands = values
        parts = [branch(*each) for each in zip(branches, divisions, strict=True)]
        return [*jax.lax.switch(index.astype(jnp.int32), parts, *operands)]

    return Action(inputs=tuple(states), results=tuple(merged), run=run)


def _checkpoint(equation: Any, states: Sequence[State], num_rows: int, divide: _Divide) -> Action:
    params = equation.params
    inner = without_jits(core.ClosedJaxpr(params["jaxpr"], ()))
    division = divide(inner.jaxpr, [*[None] * len(inner.consts), *states], num_rows)

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        def part(*values: Any) -> list[Any]:
            return division.part([*inner.consts, *values], piece, inner.jaxpr.outvars, {})

        again = jax.checkpoint(part, policy=params["policy"], prevent_cse=params["prevent_cse"])
        return [*again(*values)]

    return Action(inputs=tuple(states), results=tuple(division.results), run=run)


def _expanded(equation: Any, states: Sequence[State], num_rows: int, divide: _Divide) -> Action:
    """Return the action of a function that JAX expands later, such as `jnp.searchsorted` in jax 0.12."""
    if any(map(is_float, equation.outvars)):  # it may have a derivative of its own
        raise UndividedError(f"{named(equation)} is an operation that memprof cannot divide")
    inner = without_jits(jit_adapter.expansion_of(equation))
    division = divide(inner.jaxpr, [*[None] * len(inner.consts), *states], num_rows)

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        return division.part([*inner.consts, *values], piece, inner.jaxpr.outvars, {})

    return Action(inputs=tuple(states), results=tuple(division.results), run=run)


def _custom_jvp(equation: Any, states: Sequence[State], num_rows: int, divide: _Divide) -> Action:
    """Return the action of a function with a custom JVP: both are divided."""
    floats = [number for number, atom in enumerate(equation.invars) if is_float(atom)]
    if not all(map(is_float, equation.outvars)):
        raise UndividedError(f"{named(equation)} returns integers")

    def whole(*values: Any) -> list[Any]:
        return jit_adapter.bound(equation, [*values], equation.params)

    def derivative(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        def of_floats(*given: Any) -> list[Any]:
            return whole(*_replaced(values, floats, given))

        results, of_tangents = jax.jvp(of_floats, [values[number] for number in floats], [*tangents])
        return results, of_tangents

    shapes = [*map(jit_adapter.strong_type, equation.invars)]
    function = without_rules(equation.params["call_jaxpr"])
    both = without_rules(jax.make_jaxpr(derivative)(shapes, [shapes[number] for number in floats]))
    tangents = [states[number] for number in floats]
    division = divide(function.jaxpr, [*[None] * len(function.consts), *states], num_rows)
    of_both = divide(both.jaxpr, [*[None] * len(both.consts), *states, *tangents], num_rows)
    if of_both.results != [*division.results, *division.results]:
        raise UndividedError(f"the derivative of {named(equation)} mixes the rows")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        # The number of the part is an argument, because JAX may call the rules after the trace that it belongs to.
        def part(index: Any, *values: Any) -> list[Any]:
            here = replace(piece, index=index)
            return division.part([*function.consts, *values], here, function.jaxpr.outvars, {})

        def of_part(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            index, *values = values
            given = [*both.consts, *values, *[tangents[1 + number] for number in floats]]
            results = of_both.part(given, replace(piece, index=index), both.jaxpr.outvars, {})
            return results[: len(results) // 2], results[len(results) // 2 :]

        with_rule = jax.custom_jvp(part)
        with_rule.defjvp(of_part)
        return [*with_rule(piece.index, *values)]

    return Action(inputs=tuple(states), results=tuple(division.results), run=run)


def _custom_vjp(equation: Any, states: Sequence[State], num_rows: int, divide: _Divide) -> Action:
    """Return the action of a function with a custom VJP: both passes are divided."""
    floats = [number for number, atom in enumerate(equation.invars) if is_float(atom)]
    num_results = len(equation.outvars)
    if not all(map(is_float, equation.outvars)):
        raise UndividedError(f"{named(equation)} returns integers")
    structure: Any = None

    def forward(*values: Any) -> list[Any]:
        """Return the results, and the residuals for the backward pass."""

        def of_floats(*given: Any) -> list[Any]:
            return jit_adapter.bound(equation, _replaced(values, floats, given), equation.params)

        nonlocal structure
        results, pull = jit_adapter.plain_vjp()(of_floats, *[values[number] for number in floats])
        residuals, structure = jax.tree.flatten(pull)
        return [*results, *residuals]

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return [*jax.tree.unflatten(structure, residuals)([*cotangents])]

    first = without_rules(jax.make_jaxpr(forward)(*map(jit_adapter.strong_type, equation.invars)))
    residuals = [*map(jit_adapter.strong_type, first.jaxpr.outvars[num_results:])]
    second = without_rules(jax.make_jaxpr(backward)(residuals, [*map(jit_adapter.strong_type, equation.outvars)]))
    of_first = divide(first.jaxpr, [*[None] * len(first.consts), *states], num_rows)
    results = of_first.results[:num_results]
    cotangents = [None if axis_of(each) is None else each for each in results]
    of_second = divide(
        second.jaxpr, [*[None] * len(second.consts), *of_first.results[num_results:], *cotangents], num_rows
    )
    wanted = [_of_gradient(states[number]) for number in floats]
    if any(has not in (each, None) for has, each in zip(of_second.results, wanted, strict=True)):
        raise UndividedError(f"the backward pass of {named(equation)} mixes the rows")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        def of_part(index: Any, *values: Any) -> tuple[list[Any], tuple[Any, list[Any]]]:
            found = of_first.part([*first.consts, *values], replace(piece, index=index), first.jaxpr.outvars, {})
            return found[:num_results], (index, found[num_results:])

        def of_part_backward(kept: tuple[Any, list[Any]], cotangents: list[Any]) -> tuple[Any, ...]:
            index, residuals = kept
            here, given = replace(piece, index=index), [*second.consts, *residuals, *cotangents]
            found = of_second.part(given, here, second.jaxpr.outvars, {})
            taken = [here.taken(*each) for each in zip(found, of_second.results, wanted, strict=True)]
            return (None, *_replaced([None] * len(equation.invars), floats, taken))

        with_rule = jax.custom_vjp(lambda *values: of_part(*values)[0])
        with_rule.defvjp(of_part, of_part_backward)
        return [*with_rule(piece.index, *values)]

    return Action(inputs=tuple(states), results=tuple(results), run=run)


def _of_gradient(state: State) -> State:
    """Return the state of an input's gradient: a sum over the parts for a whole input, whole for a sum."""
    if state is None:
        return Total.SUM
    return None if state is Total.SUM else state


def is_float(atom: Any) -> bool:
    """Whether an atom has a dtype that can be differentiated."""
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.inexact))


def _replaced(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Return values with new ones at some places."""
    return [*(dict(enumerate(values)) | dict(zip(places, new, strict=True))).values()]


CALLS: dict[str, Callable[[Any, Sequence[State], int, _Divide], Action]] = {
    **dict.fromkeys(("checkpoint", "remat", "remat2"), _checkpoint),
    "call_hi_primitive": _expanded,
    "cond": _cond,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "scan": _scan,
}
