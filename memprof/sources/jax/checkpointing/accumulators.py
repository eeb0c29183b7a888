"""Sums over the turns of a scan, such as those of the gradients of minibatches, held in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.apply import reevaluated
from memprof.sources.jax.checkpointing.evaluation import as_function, bind, consts_and_carried, value_of, without_jits
from memprof.sources.jax.tracing import jit_adapter

_ADDITIONS = frozenset({"add", "add_any"})


def narrow_sums(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step whose scans hold their float32 sums of arrays in bfloat16 between turns."""
    return reevaluated(step, _evaluated)


def sums_of(equation: Any) -> list[int]:
    """Return the numbers of the carried values of a scan that are float32 arrays to which each turn only adds."""
    if equation.primitive.name != "scan":
        return []
    num_consts, num_carried = consts_and_carried(equation)
    body = without_jits(equation.params["jaxpr"]).jaxpr
    maker = {var: each for each in body.eqns for var in each.outvars}
    read = [atom for each in body.eqns for atom in each.invars if isinstance(atom, core.Var)]
    read += [atom for atom in body.outvars if isinstance(atom, core.Var)]
    found = []
    for number in range(num_carried):
        before, after = body.invars[num_consts + number], body.outvars[number]
        addition = maker.get(after) if isinstance(after, core.Var) else None
        is_sum = addition is not None and addition.primitive.name in _ADDITIONS and before in addition.invars
        if is_sum and read.count(before) == 1 and before.aval.dtype == jnp.float32 and before.aval.ndim:
            found.append(number)
    return found


def _evaluated(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        sums = sums_of(equation)
        if sums:
            _narrow(equation, sums, known)
        else:
            bind(equation, known, equation.params)
    return [value_of(atom, known) for atom in jaxpr.outvars]


def _narrow(equation: Any, sums: Sequence[int], known: dict[Any, Any]) -> None:
    """Evaluate a scan with some of its carried values in bfloat16."""
    num_consts, num_carried = consts_and_carried(equation)
    params, body = equation.params, as_function(equation.params["jaxpr"])
    values = [value_of(atom, known) for atom in equation.invars]

    def cast(carry: Sequence[Any], dtype: Any) -> list[Any]:
        return [each.astype(dtype) if number in sums else each for number, each in enumerate(carry)]

    def turn(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*values[:num_consts], *cast(carry, jnp.float32), *rows)
        return cast(results[:num_carried], jnp.bfloat16), results[num_carried:]

    first, rows = values[num_consts : num_consts + num_carried], values[num_consts + num_carried :]
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    with jit_adapter.name_of(equation):
        carry, stacks = jax.lax.scan(turn, cast(first, jnp.bfloat16), rows, **options)
    known.update(zip(equation.outvars, [*cast(carry, jnp.float32), *stacks], strict=True))
