"""Re-evaluation of jaxprs: equation by equation, with calls inlined or kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.blocks import CALLS
from memprof.sources.jax.checkpointing.rows import Axis, Rows
from memprof.sources.jax.tracing import jit_adapter

Flat = Callable[..., list[Any]]
Rule = Callable[[Any, list[Any]], list[Any] | None]  # an equation and its values; None leaves the equation unchanged


def without_calls(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its jits and checkpoints inlined.

    A call with shardings for its arguments or results stays.
    """
    return jax.make_jaxpr(lambda *args: evaluated(closed, args, inlined))(*closed.in_avals)


def without_jits(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its jits inlined; its checkpoints stay."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        return None if equation.primitive.name in jit_adapter.CHECKPOINTS else inlined(equation, values, rule)

    return jax.make_jaxpr(lambda *args: evaluated(closed, args, rule))(*closed.in_avals)


def without_checkpoints(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its checkpoints, and the jits that contain some, inlined; other jits stay."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        has_checkpoints = equation.primitive.name in jit_adapter.CHECKPOINTS or any(
            each.primitive.name in jit_adapter.CHECKPOINTS
            for inner in core.jaxprs_in_params(equation.params)
            for each in jit_adapter.all_equations(inner)
        )
        return inlined(equation, values, rule) if has_checkpoints else None

    return jax.make_jaxpr(lambda *args: evaluated(closed, args, rule))(*closed.in_avals)


def without_rules(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its jits inlined, and without custom derivatives."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            return evaluated(equation.params["call_jaxpr"], values, rule)
        return None if equation.primitive.name in jit_adapter.CHECKPOINTS else inlined(equation, values, rule)

    return jax.make_jaxpr(lambda *args: evaluated(closed, args, rule))(*closed.in_avals)


def as_function(closed: core.ClosedJaxpr) -> Flat:
    """Return a jaxpr as a function from arrays to a list of arrays."""
    return lambda *args: evaluated(closed, args, _no_rewrite)


def _no_rewrite(equation: Any, values: list[Any]) -> None:
    """Leave calls unchanged."""


def inlined(equation: Any, values: list[Any], rule: Rule | None = None) -> list[Any] | None:
    """Inline a call, and evaluate its equations by a rule. Return None if the equation is not such a call."""
    name = CALLS.get(equation.primitive.name)
    if name is None or not jit_adapter.has_no_shardings(equation.params):
        return None
    inner = equation.params[name]
    closed = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
    return evaluated(closed, values, rule or inlined)


def evaluated(closed: core.ClosedJaxpr, args: Sequence[Any], rule: Rule) -> list[Any]:
    """Evaluate a jaxpr, each equation by a rule. If the rule returns None, the equation stays unchanged."""
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        values = [value_of(atom, known) for atom in equation.invars]
        with jit_adapter.name_of(equation):
            results = rule(equation, values)
        if results is None:
            bind(equation, known, equation.params)
        else:
            known.update(zip(equation.outvars, results, strict=True))
    return [value_of(atom, known) for atom in jaxpr.outvars]


def bind(equation: Any, known: dict[Any, Any], params: dict[str, Any]) -> None:
    """Evaluate an equation with other parameters, and store its results in `known`."""
    values = [value_of(atom, known) for atom in equation.invars]
    known.update(zip(equation.outvars, bound_values(equation, values, params), strict=True))


def bound_values(equation: Any, values: list[Any], params: dict[str, Any]) -> list[Any]:
    """Return the results of an equation for other inputs and parameters."""
    with jit_adapter.name_of(equation):
        return jit_adapter.bound(equation, values, params)


def evaluated_rows(
    jaxpr: core.Jaxpr,
    rows: Mapping[int, Sequence[Rows]],
    inputs: Mapping[tuple[Any, tuple[Axis, ...]], Any],
    parts: Sequence[tuple[int, int]],
) -> dict[Any, Any]:
    """Evaluate some equations for a part of their rows, or of their rows along each of several axes.

    Args:
        rows: the row axes of the equations, by index.
        inputs: the part of each variable from outside along its axes (None: whole).
        parts: the numbers of rows of the part, and of all rows.

    Returns:
        The values of all variables that the equations make.
    """
    made: dict[Any, Any] = {}
    for number in sorted(rows):
        equation, of_equation = jaxpr.eqns[number], rows[number]
        axes = zip(*(each.inputs for each in of_equation), strict=True)
        values = [
            inputs[atom, of_atom] if isinstance(atom, core.Var) and atom not in made else value_of(atom, made)
            for atom, of_atom in zip(equation.invars, axes, strict=True)  # one may be read by rows and whole
        ]
        params = equation.params
        for each, (part, num_rows) in zip(of_equation, parts, strict=True):
            params = each.params(params, part, num_rows)
        made.update(zip(equation.outvars, bound_values(equation, values, params), strict=True))
    return made


def value_of(atom: Any, known: dict[Any, Any]) -> Any:
    """Return the value of an equation's input."""
    return atom.val if isinstance(atom, core.Literal) else known[atom]
