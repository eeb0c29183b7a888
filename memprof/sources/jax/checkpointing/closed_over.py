"""Large arrays that a differentiated function closes over, made within it from smaller ones.

A loss often reads large arrays that the step makes before it takes the gradient: the logits of a teacher, one-hot
labels, a mask. Whole arrays need not exist if the loss makes them itself, a chunk at a time. What nobody else reads is
then no longer made outside.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.blocks import made_bytes
from memprof.sources.jax.checkpointing.evaluation import bind, without_jits
from memprof.sources.jax.tracing import jit_adapter

_MAX_EQUATIONS = 64  # more are another model, not the end of one
_MAX_DEPTH = 4  # of equations behind a small value
_LEFT = ("random_", "threefry", "rng_")  # prefixes of primitives that are never repeated
_LOOPS = ("scan", "while", "cond")


def with_makers(closed: core.ClosedJaxpr) -> tuple[core.ClosedJaxpr, dict[Any, Any]]:
    """Return a function without jits that makes some of its constants itself, if smaller arrays around it make them.

    Returns:
        The same function, and the values of these constants: equations whose results are not read within a part of
        the function need not be evaluated.
    """
    jaxpr = closed.jaxpr
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    equations: dict[int, Any] = {}  # by identity, in order
    made: dict[Any, Any] = {}
    for var, value in consts.items():
        found = _makers(value)
        if found is not None:
            equations.update((id(each), each) for each in found)
            made[var] = value
    if not made:
        return closed, {}
    makers, inputs = _as_function([*equations.values()], [*made.values()])
    names = dict(zip(makers.jaxpr.outvars, made, strict=True))
    kept = {var: value for var, value in consts.items() if var not in made}
    kept.update(zip(makers.jaxpr.constvars, makers.consts, strict=True))
    kept.update(zip(makers.jaxpr.invars, inputs, strict=True))
    renamed = [
        each.replace(
            invars=[names.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in each.invars],
            outvars=[names.get(var, var) for var in each.outvars],
        )
        for each in makers.jaxpr.eqns
    ]
    extended = jaxpr.replace(
        constvars=[*kept], eqns=[*renamed, *jaxpr.eqns], debug_info=jaxpr.debug_info.with_unknown_names()
    )
    return core.ClosedJaxpr(extended, [*kept.values()]), made


def _as_function(equations: list[Any], results: list[Any]) -> tuple[core.ClosedJaxpr, list[Any]]:
    """Return equations of a running trace as a function without jits, and the values of its inputs."""
    inside = {var for each in equations for var in each.outvars}
    inputs: dict[Any, Any] = {}
    for value in (value for each in equations for value in each.in_tracers):
        atom = jit_adapter.atom_of(value)
        if isinstance(atom, core.Var) and atom not in inside:
            inputs[atom] = value

    def made(*values: Any) -> list[Any]:
        known = dict(zip(inputs, values, strict=True))
        for each in equations:
            bind(jit_adapter.as_equation(each), known, each.params)
        return [known[jit_adapter.atom_of(value)] for value in results]

    avals = [value.aval for value in inputs.values()]
    return without_jits(jax.make_jaxpr(made)(*avals)), [*inputs.values()]


def _makers(value: Any) -> list[Any] | None:
    """Return the equations that make a constant from smaller arrays, in order; None if there are none."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def visit(value: Any) -> bool:
        """Whether a value is small, or made from small ones by the equations found."""
        if made_bytes([value]) < size / 2 and not is_from_large(value):
            return True
        equation = jit_adapter.maker_of(value)
        if equation is None or not _may_move(equation):
            return False
        if id(equation) not in seen:
            seen.add(id(equation))
            if len(seen) > _MAX_EQUATIONS or not all(map(visit, equation.in_tracers)):
                return False
            found[id(equation)] = equation
        return True

    def is_from_large(value: Any, depth: int = _MAX_DEPTH) -> bool:
        """Whether a small value, such as the maximum of each row, is made from a large one without a product."""
        equation = jit_adapter.maker_of(value)
        if equation is None or depth == 0 or equation.primitive.name == "dot_general":
            return False
        return any(made_bytes([each]) >= size / 2 or is_from_large(each, depth - 1) for each in equation.in_tracers)

    if jit_adapter.maker_of(value) is None:
        return None
    size = made_bytes([value])
    return [*found.values()] if visit(value) else None


def _may_move(equation: Any) -> bool:
    inner = [each for jaxpr in core.jaxprs_in_params(equation.params) for each in jit_adapter.all_equations(jaxpr)]
    names = [each.primitive.name for each in (equation, *inner)]
    is_left = any(name.startswith(_LEFT) or name in _LOOPS for name in names)
    return not equation.effects and len(names) <= _MAX_EQUATIONS and not is_left
