"""Whether a jaxpr has a backward pass, also where it counts no FLOPs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from memprof.sources.jax.tracing.flops import has_backward_pass

_W = jnp.ones(3)


def _loss(w: jax.Array) -> jax.Array:
    return (w * w).sum()


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (_loss, False),
        (lambda w: jnp.ones((3, 3)).T @ w, False),  # the primitive `transpose` is no derivative
        (lambda w: jax.jvp(_loss, (w,), (w,)), False),
        (jax.grad(_loss), True),
        (jax.jit(jax.grad(_loss)), True),
        (lambda w: jax.lax.fori_loop(0, 3, lambda _, w: w - jax.grad(_loss)(w), w), True),
        (lambda w: jax.lax.cond(w[0] > 0, jax.grad(_loss), lambda w: w, w), True),
    ],
    ids=["loss", "transposed", "forward mode", "gradient", "jitted", "in a loop", "in a branch"],
)
def test_a_backward_pass_is_found_anywhere_in_a_jaxpr(fn: object, expected: bool) -> None:
    assert has_backward_pass(jax.make_jaxpr(fn)(_W)) is expected
