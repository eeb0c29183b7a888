"""Checkpoints put into a step while it is traced: the user's files stay as they are.

`jax.grad` and its relatives, of frameworks too, hand the function that is differentiated to `jax.vjp`. There it is
traced to a jaxpr, and its evaluation under checkpoints is differentiated instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend import core

from memprof.capture.checkpointing.evaluation import with_checkpoints, without_calls
from memprof.capture.checkpointing.signature import Policy
from memprof.capture.tracing import jit_adapter
from memprof.errors import MemprofError


@contextmanager
def checkpointed(policy: Policy | None) -> Iterator[list[core.ClosedJaxpr]]:
    """Put checkpoints around the blocks of all functions that are differentiated inside.

    Args:
        policy: of each checkpoint; None: none is put there, and the functions are collected alone.

    Yields:
        The functions, without calls, in the order in which they are differentiated.
    """
    seen: list[core.ClosedJaxpr] = []
    is_inside = False

    def stand_in(vjp: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(vjp)
        def changed(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
            nonlocal is_inside
            if is_inside:  # a derivative inside what is differentiated: its values are those of the function around it
                return vjp(fun, *primals, **options)
            is_inside = True
            try:
                traced, results = jax.make_jaxpr(fun, return_shape=True)(*primals)
                closed = without_calls(traced)
            finally:
                is_inside = False
            seen.append(closed)
            if policy is None:
                return vjp(fun, *primals, **options)
            evaluate, structure = with_checkpoints(closed, policy), jax.tree.structure(results)

            def evaluated(*args: Any) -> Any:
                return jax.tree.unflatten(structure, evaluate(*jax.tree.leaves(args)))

            return vjp(evaluated, *primals, **options)

        return changed

    with jit_adapter.differentiation_replaced(stand_in):
        yield seen


def with_policy(step: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
    """A step with checkpoints around the blocks of what it differentiates, jitted as the step is.

    Raises:
        MemprofError: a framework has jitted the step.
    """
    if jit_adapter.is_framework_jit(step):
        raise MemprofError(
            "the step is jitted by its framework: give the function without jit, and jit what comes back"
        )
    inner = getattr(step, "__wrapped__", step) if hasattr(step, "lower") else step

    def changed(*args: Any, **kwargs: Any) -> Any:
        with checkpointed(policy):
            return inner(*args, **kwargs)

    if inner is step:
        return changed
    options = jit_adapter.jit_options(step)
    jitted: Callable[..., Any] = jax.jit(
        functools.wraps(inner)(changed),
        donate_argnums=options.donate_argnums,
        static_argnums=options.static_argnums,
        static_argnames=options.static_argnames,
    )
    return jitted
