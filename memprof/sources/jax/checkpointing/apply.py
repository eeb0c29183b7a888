"""Insert checkpoints into a step while it is traced. The user's files stay unchanged.

`jax.grad` and similar functions, including those of frameworks, pass the differentiated function to `jax.vjp`. There it
is traced to a jaxpr, and a checkpointed evaluation of the jaxpr is differentiated instead. Functions here that jit a
changed step raise `MemprofError` if a framework has jitted it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.checkpoints import Checkpoints
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.evaluation import Flat, as_function, without_calls
from memprof.sources.jax.checkpointing.inserted import with_checkpoints
from memprof.sources.jax.checkpointing.policies import Policy
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import is_array_like

_ARRAY = object()


@contextmanager
def checkpointed(
    checkpoints: Checkpoints | Policy | None, *, chosen: Callable[[core.ClosedJaxpr], bool] = lambda closed: True
) -> Iterator[list[core.ClosedJaxpr]]:
    """Put checkpoints around the blocks of all functions that are differentiated within a `with` block.

    Args:
        checkpoints: the checkpoints, or a policy for all blocks; None: only collect the functions, unchanged.
        chosen: decides whether a function gets checkpoints.

    Yields:
        The functions, without calls, in the order in which they are differentiated.
    """
    seen: list[core.ClosedJaxpr] = []

    def changed(closed: core.ClosedJaxpr) -> Flat:
        seen.append(without_calls(closed))
        # A framework's function can be called only once, because it consumes a list made for one call.
        if checkpoints is None or not chosen(seen[-1]):
            return as_function(closed)
        return with_checkpoints(closed, checkpoints)

    with differentiated_as(changed):
        yield seen


@contextmanager
def differentiated() -> Iterator[list[core.ClosedJaxpr]]:
    """Collect the functions that are differentiated within a `with` block, with their calls and checkpoints.

    They can still be evaluated afterwards, also within another trace.
    """
    seen: list[core.ClosedJaxpr] = []

    def unchanged(closed: core.ClosedJaxpr) -> Flat:
        seen.append(core.ClosedJaxpr(closed.jaxpr, _outliving(closed.consts)))
        return as_function(closed)

    with differentiated_as(unchanged):
        yield seen


def _outliving(constants: Sequence[Any]) -> list[Any]:
    """Replace tracers by those of a jaxpr: those of a `vmap` around the function are invalid once that has returned."""
    stand_ins: list[Any] = []
    jax.make_jaxpr(stand_ins.extend)([jax.typeof(each) for each in constants])
    return [
        stand_in if isinstance(constant, jax.core.Tracer) else constant
        for constant, stand_in in zip(constants, stand_ins, strict=True)
    ]


def differentiated_as(changed: Callable[[core.ClosedJaxpr], Flat]) -> AbstractContextManager[None]:
    """Replace each differentiated function by another one, made from its jaxpr."""
    return differentiated_by(lambda function: (function.vjp, changed(function.closed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Differentiated:
    """A function that is differentiated.

    Attributes:
        vjp: `jax.vjp`, or another replacement of it.
        is_loss: whether its first result is a number, and the only result that is differentiated.
    """

    closed: core.ClosedJaxpr
    vjp: Callable[..., Any]
    is_loss: bool


@contextmanager
def differentiated_by(
    changed: Callable[[Differentiated], tuple[Callable[..., Any], Flat]],
) -> Iterator[None]:
    """Replace each differentiated function, and the function that differentiates it.

    Args:
        changed: returns the replacements of `jax.vjp` and of the differentiated function.
    """
    is_inside = False

    def replacement(vjp: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(vjp)
        def changed_vjp(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
            nonlocal is_inside
            if is_inside:  # a nested derivative: leave it unchanged, as a part of the function around it
                return vjp(fun, *primals, **options)
            is_inside = True
            try:
                results = Results(fun)
                closed = jax.make_jaxpr(results.arrays)(*primals)
                is_loss = results.has_one_number(has_aux=bool(options.get("has_aux")))
                differentiate, evaluate = changed(Differentiated(closed=closed, vjp=vjp, is_loss=is_loss))
            finally:
                is_inside = False
            return differentiate(lambda *args: results.whole(evaluate(*jax.tree.leaves(args))), *primals, **options)

        return changed_vjp

    with jit_adapter.differentiation_replaced(replacement):
        yield


class Results:
    """The results of a function: arrays, which its jaxpr returns, and other leaves, passed on unchanged."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self._fun = fun
        self._leaves: list[Any] = []
        self._structure: Any = None
        self._avals: list[Any] = []

    def arrays(self, *args: Any) -> list[Any]:
        """Call the function and return only its arrays."""
        leaves, self._structure = jax.tree.flatten(self._fun(*args))
        self._leaves = [_ARRAY if is_array_like(leaf) else leaf for leaf in leaves]
        arrays = [leaf for leaf in leaves if is_array_like(leaf)]
        self._avals = [jax.typeof(leaf) for leaf in arrays]
        return arrays

    def has_one_number(self, *, has_aux: bool) -> bool:
        """Whether the called function returned one float, with or without auxiliary results."""
        structure = self._structure.children()[0] if has_aux else self._structure
        first = next(iter(self._avals), None)
        is_number = first is not None and not first.shape and jnp.issubdtype(first.dtype, jnp.floating)
        return structure.num_leaves == 1 and self._leaves[0] is _ARRAY and bool(is_number)

    def whole(self, arrays: list[Any]) -> Any:
        """Return the function's result with these arrays in it."""
        each = iter(arrays)
        return jax.tree.unflatten(self._structure, [next(each) if leaf is _ARRAY else leaf for leaf in self._leaves])


def with_checkpointed_blocks(step: Callable[..., Any], checkpoints: Checkpoints | Policy) -> Callable[..., Any]:
    """Return a step with checkpoints around its differentiated blocks, jitted with the step's own options."""
    return traced_within(step, lambda: checkpointed(checkpoints))


def traced_within(step: Callable[..., Any], around: Callable[[], AbstractContextManager[object]]) -> Callable[..., Any]:
    """Return a step that is traced within a context, jitted with the step's own options."""

    def changed(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            with around():
                return inner(*args, **kwargs)

        return call

    return rejitted(step, changed)


def rejitted(
    step: Callable[..., Any], change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Change the function within a step's jit, and jit it with the step's own options.

    Raises:
        MemprofError: a framework has jitted the step.
    """
    if jit_adapter.is_framework_jit(step):
        raise MemprofError("the step is jitted by its framework: give the function without jit, and jit the result")
    inner = getattr(step, "__wrapped__", step) if hasattr(step, "lower") else step
    changed = change(inner)
    for name in ("__name__", "__qualname__"):  # a `functools.partial` has none
        setattr(changed, name, getattr(step, name, "step"))
    return changed if inner is step else jit_adapter.jitted_as(step, changed)
