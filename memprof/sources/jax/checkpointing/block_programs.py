"""The blocks of a function as programs of their own: what is traced again, differentiated and priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.blocks import Repeated, block_loops, find_repeated
from memprof.sources.jax.checkpointing.evaluation import Flat, bind, without_calls
from memprof.sources.jax.tracing import jit_adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """A block of a function.

    Attributes:
        count: the number of its runs.
        carried: the positions of the inputs that are results of the run before: the carry of a scan, or what the layer
            before returns.
        is_loop: whether it is the body of a scan.
        inner_count: for a scan within another scan, the number of iterations in one run of it; otherwise None.
    """

    closed: core.ClosedJaxpr
    count: int
    carried: Sequence[int] = ()
    is_loop: bool = False
    inner_count: int | None = None


def blocks_of(closed: core.ClosedJaxpr) -> list[BlockProgram]:
    """Return the different blocks of a function without calls."""
    repeated = find_repeated(closed.jaxpr)
    if repeated is None:
        return [
            BlockProgram(
                closed=without_calls(each.equation.params["jaxpr"]),
                count=each.num_runs * each.length,
                carried=carried_inputs(each.equation),
                is_loop=True,
                inner_count=each.length if each.num_runs > 1 else None,
            )
            for each in block_loops(closed.jaxpr)
        ]
    run, inputs, _ = equations_as_function(closed.jaxpr, repeated.start, repeated.length)
    avals = [jit_adapter.strong_type(var) for var in inputs]
    passed_on = _passed_on(closed.jaxpr, repeated)
    carried = [place for place, var in enumerate(inputs) if var in passed_on]
    return [BlockProgram(closed=jax.make_jaxpr(run)(*avals), count=repeated.count, carried=carried)]


def _passed_on(jaxpr: core.Jaxpr, repeated: Repeated) -> set[Any]:
    """Return the variables in whose place the second repetition reads results of the first one."""
    if repeated.count == 1:
        return set()
    first, second = (jaxpr.eqns[start : start + repeated.length] for start in repeated.starts()[:2])
    made = {var for each in first for var in each.outvars}
    return {
        before
        for one, next_one in zip(first, second, strict=True)
        for before, after in zip(one.invars, next_one.invars, strict=True)
        if isinstance(before, core.Var) and isinstance(after, core.Var) and after in made
    }


def carried_inputs(equation: Any) -> range:
    """Return the positions of the carried inputs of a scan's body."""
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    return range(num_consts, num_consts + num_carried)


def equations_as_function(jaxpr: core.Jaxpr, start: int, length: int) -> tuple[Flat, list[Any], list[Any]]:
    """Return some equations as a function, the variables that it reads, and its results that are read later."""
    equations = jaxpr.eqns[start : start + length]
    made = {var for each in equations for var in each.outvars}
    read = [atom for each in equations for atom in each.invars if isinstance(atom, core.Var)]
    inputs = list(dict.fromkeys(var for var in read if var not in made))
    after = {atom for each in jaxpr.eqns[start + length :] for atom in each.invars if isinstance(atom, core.Var)}
    after.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    outputs = [var for each in equations for var in each.outvars if var in after]

    def run(*args: Any) -> list[Any]:
        known = dict(zip(inputs, args, strict=True))
        for equation in equations:
            bind(equation, known, equation.params)
        return [known[var] for var in outputs]

    return run, inputs, outputs
