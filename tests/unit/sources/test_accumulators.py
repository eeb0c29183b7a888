"""Sums over the turns of a scan in bfloat16: which they are, and that a step computes nearly the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from random_arrays import normal

import memprof
from memprof.sources.jax.checkpointing.accumulators import sums_of

_WEIGHTS = normal(0, (8, 8))
_PARTS = normal(1, (4, 2, 8))


def _step(weights: Any, parts: Any) -> Any:
    """Of what is carried, the sum of gradients is one; a product, a number and what is also read are none."""

    def add(carry: Any, part: Any) -> Any:
        total, product, count, seen = carry
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(part @ w)))(weights)
        return (total + gradient, product * gradient, count + 1, seen + gradient), jnp.sum(seen)

    zeros = jnp.zeros_like(weights)
    return jax.lax.scan(add, (zeros, zeros, 0.0, zeros), parts)


def test_sums_alone_are_narrow() -> None:
    (scan,) = [each for each in jax.make_jaxpr(_step)(_WEIGHTS, _PARTS).eqns if each.primitive.name == "scan"]
    assert sums_of(scan) == [0]


def test_a_step_computes_nearly_the_same() -> None:
    changed = memprof.apply(memprof.NarrowSums())(jax.jit(_step))
    (total, *others), stack = changed(_WEIGHTS, _PARTS)
    (whole, *before), old = _step(_WEIGHTS, _PARTS)
    assert total.dtype == jnp.float32
    assert np.array_equal(total, total.astype(jnp.bfloat16))  # it has been rounded
    np.testing.assert_allclose(total, whole, atol=4 * 2**-8 * float(jnp.abs(whole).max()))
    for new, each in zip((*others, stack), (*before, old), strict=True):
        np.testing.assert_allclose(new, each, rtol=1e-5, atol=1e-6)
