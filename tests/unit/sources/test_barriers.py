"""The values at the optimization barriers of a step, found while it is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memprof.sources.jax.tracing.barriers import fenced_values

X = jax.ShapeDtypeStruct((4, 4), "float32")


def _names(fn: Callable[..., Any]) -> list[str]:
    return list(fenced_values(jax.make_jaxpr(fn)(X)))


def test_a_value_has_its_op_name_and_the_lines_that_made_it() -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(jnp.tanh(x))

    lines, first = inspect.getsourcelines(step)
    assert len(lines) == 2
    (found,) = fenced_values(jax.make_jaxpr(step)(X)).items()
    name, made_at = found
    assert name == "tanh"
    assert f"{__file__}:{first + 1}" in made_at


def test_a_step_without_a_barrier_has_no_such_values() -> None:
    assert fenced_values(jax.make_jaxpr(jnp.tanh)(X)) == {}


def test_arguments_are_no_such_values() -> None:
    assert _names(lambda x: jax.lax.optimization_barrier((x, jnp.sin(x)))[0]) == ["sin"]


def _in_a_scope(x: jax.Array) -> jax.Array:
    with jax.named_scope("layer"):
        y = jnp.sin(x)
    return jax.lax.optimization_barrier(y)


def _of_a_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.optimization_barrier(jax.grad(lambda x: jnp.sin(x).sum())(x))


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (_in_a_scope, "layer/sin"),
        (_of_a_gradient, "transpose(jvp())/mul"),
        (jax.jit(lambda x: jax.lax.optimization_barrier(jnp.sin(x))), "sin"),
        (lambda x: jax.lax.optimization_barrier(jax.jit(jnp.sin)(x)), "sin"),
        (lambda x: jax.lax.scan(lambda x, _: (jax.lax.optimization_barrier(jnp.sin(x)), None), x, length=3)[0], "sin"),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: jax.lax.optimization_barrier(jnp.sin(x)), jnp.cos, x), "sin"),
    ],
    ids=["in a scope", "of a gradient", "in a jit", "out of a jit", "in a scan", "in a branch"],
)
def test_they_are_found_wherever_they_are_made(fn: Callable[..., Any], name: str) -> None:
    assert _names(fn) == [name]
