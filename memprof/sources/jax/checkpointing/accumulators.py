"""Hold a scan's sums, such as gradients summed over minibatches, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.evaluation import as_function, evaluated, without_jits
from memprof.sources.jax.checkpointing.reevaluation import reevaluated
from memprof.sources.jax.tracing import jit_adapter

_ADDITIONS = frozenset({"add", "add_any"})


def narrow_sums(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step whose scans hold their float32 sums of arrays in bfloat16 between iterations."""
    return reevaluated(step, lambda closed, args: evaluated(closed, args, _narrow))


def sums_of(equation: Any) -> list[int]:
    """Return the positions of the float32 arrays in a scan's carry to which each iteration only adds."""
    if equation.primitive.name != "scan":
        return []
    num_consts, num_carried = jit_adapter.scan_layout(equation)
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


def _narrow(equation: Any, values: list[Any]) -> list[Any] | None:
    """Evaluate a scan with its sums in bfloat16; return None for any other equation."""
    sums = sums_of(equation)
    if not sums:
        return None
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    params, body = equation.params, as_function(equation.params["jaxpr"])

    def cast(carry: Sequence[Any], dtype: Any) -> list[Any]:
        return [each.astype(dtype) if number in sums else each for number, each in enumerate(carry)]

    def iteration(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*values[:num_consts], *cast(carry, jnp.float32), *rows)
        return cast(results[:num_carried], jnp.bfloat16), results[num_carried:]

    first, rows = values[num_consts : num_consts + num_carried], values[num_consts + num_carried :]
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, stacks = jax.lax.scan(iteration, cast(first, jnp.bfloat16), rows, **options)
    return [*cast(carry, jnp.float32), *stacks]
