"""A step divided along its examples with its derivatives, one minibatch after another.

If a `vmap` differentiates a loss of each example, as in a step that clips each example's gradient, a loss has only one
example, so gradients cannot be accumulated over minibatches of it (see `minibatches.py`). Here the jaxpr of the whole
step is divided, up to where it mixes examples. Nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from memprof.analysis.records.rewrites import StepInMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.actions import UndividedError
from memprof.sources.jax.checkpointing.apply import Differentiated, differentiated_by
from memprof.sources.jax.checkpointing.divided_loss import DividedLoss
from memprof.sources.jax.checkpointing.evaluation import as_function
from memprof.sources.jax.checkpointing.reevaluation import reevaluated
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import is_array_like

_DIFFERENTIATED, _READ = "memprof: differentiated", "memprof: read by what is differentiated"


def step_in_minibatches(
    step: Callable[..., Any], rewrite: StepInMinibatches, found: list[int] | None = None
) -> Callable[..., Any]:
    """Return a step that computes one minibatch of its examples after another, up to where it mixes them.

    Args:
        found: receives the number of examples when the step is traced.

    Raises:
        MemprofError: a framework has jitted the step. When it is traced: it cannot be divided.
    """

    def evaluate(closed: core.ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        of_inputs = dict(zip(closed.jaxpr.invars, values, strict=True))
        data = _inputs_behind(_READ, closed.jaxpr) - _inputs_behind(_DIFFERENTIATED, closed.jaxpr)
        constants = {var: value for var, value in of_inputs.items() if var in data}
        try:
            divided = _Divided(_as_constants(closed, constants), rewrite)
        except UndividedError as error:
            raise MemprofError(f"the step cannot be divided into minibatches: {error}") from error
        if found is not None:
            found.append(divided.num_examples)
        return divided(*(value for var, value in of_inputs.items() if var not in data))

    return reevaluated(step, evaluate, around=_marking)


class _Divided(DividedLoss):
    """A step as a function of all inputs but the data that its differentiated functions read."""

    def __call__(self, *args: Any) -> list[Any]:
        """Return the results of the step."""
        return self.looped(args, self.part(args, [*self.sums, *self.rows]))


@contextmanager
def _marking() -> Iterator[None]:
    """Mark the values for which a step computes derivatives, and those that the differentiated functions read."""

    def marked(function: Differentiated) -> tuple[Callable[..., Any], Callable[..., list[Any]]]:
        def vjp(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
            return function.vjp(fun, *jax.tree.map(partial(_marked, _DIFFERENTIATED), primals), **options)

        consts = [_marked(_READ, each) for each in function.closed.consts]
        return vjp, as_function(core.ClosedJaxpr(function.closed.jaxpr, consts))

    with differentiated_by(marked):
        yield


def _marked(mark: str, leaf: Any) -> Any:
    return checkpoint_name(leaf, mark) if is_array_like(leaf) else leaf


def _inputs_behind(mark: str, jaxpr: core.Jaxpr) -> set[Any]:
    """Return the inputs on which marked values depend."""
    wanted: set[Any] = set()
    for equation in reversed(jaxpr.eqns):
        is_marked = equation.primitive.name == "name" and equation.params["name"] == mark
        if is_marked or not wanted.isdisjoint(equation.outvars):
            wanted.update(atom for atom in equation.invars if isinstance(atom, core.Var))
    return wanted.intersection(jaxpr.invars)


def _as_constants(closed: core.ClosedJaxpr, inputs: dict[Any, Any]) -> Differentiated:
    """Return a step with some of its inputs as constants."""
    jaxpr = closed.jaxpr
    inner = jaxpr.replace(
        constvars=[*jaxpr.constvars, *inputs],
        invars=[var for var in jaxpr.invars if var not in inputs],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    with_constants = core.ClosedJaxpr(inner, [*closed.consts, *inputs.values()])
    return Differentiated(closed=with_constants, vjp=jit_adapter.plain_vjp(), is_loss=False)
