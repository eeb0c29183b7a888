"""Random losses: accumulated gradients are those of the whole batch, or memprof refuses to accumulate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import memprof
from memprof.analysis.records.rewrites import InMinibatches, StepInMinibatches
from memprof.errors import MemprofError

pytestmark = pytest.mark.usefixtures("quick_compiles")

_SHAPE = (4, 3, 2)  # four examples; other axes get the same length, too
_WEIGHTS = jnp.linspace(-1.0, 1.0, 64 * 64).reshape(64, 64)
_BATCH = jnp.sin(jnp.arange(24.0)).reshape(_SHAPE)


def _shared(x: Any, weights: Any, axis: int) -> Any:
    """Multiply an axis by a square matrix."""
    size = x.shape[axis]
    return jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ weights[:size, :size], -1, axis)


def _pairs(x: Any, weights: Any, axis: int) -> Any:
    """Multiply all pairs along an axis."""
    first = jnp.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    return first @ first.T


def _merged(x: Any, weights: Any, axis: int) -> Any:
    """Merge an axis with the next one."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _split(x: Any, weights: Any, axis: int) -> Any:
    """Split an axis of even length in two."""
    halves = (2, x.shape[axis] // 2) if x.shape[axis] % 2 == 0 else (1, x.shape[axis])
    return x.reshape(*x.shape[:axis], *halves, *x.shape[axis + 1 :])


def _scanned(x: Any, weights: Any, axis: int) -> Any:
    """Run a recurrence along an axis."""
    rows = jnp.moveaxis(x, axis, 0)
    carried, made = jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), jnp.zeros(rows.shape[1:]), rows)
    return jnp.moveaxis(made, 0, axis) + jnp.expand_dims(carried, axis)


_OPERATIONS: tuple[Callable[[Any, Any, int], Any], ...] = (
    lambda x, weights, axis: jnp.tanh(x),
    lambda x, weights, axis: jax.nn.relu(x),
    lambda x, weights, axis: jax.nn.softmax(x, axis),
    lambda x, weights, axis: jnp.cumsum(x, axis),
    lambda x, weights, axis: jnp.sort(x, axis),
    lambda x, weights, axis: jnp.flip(x, axis),
    lambda x, weights, axis: jnp.roll(x, 1, axis),
    lambda x, weights, axis: jnp.moveaxis(x, axis, 0),
    lambda x, weights, axis: x - x.mean(axis, keepdims=True),
    lambda x, weights, axis: x.sum(axis, keepdims=True) * weights[0, 0],
    lambda x, weights, axis: x.max(axis),
    lambda x, weights, axis: jnp.concatenate([x, 2 * x], axis),
    lambda x, weights, axis: jax.lax.slice_in_dim(x, 0, max(x.shape[axis] // 2, 1), axis=axis),
    lambda x, weights, axis: jnp.pad(x, [(0, each == axis) for each in range(x.ndim)]),
    lambda x, weights, axis: jnp.take(x, jnp.arange(x.shape[axis]) // 2, axis),
    lambda x, weights, axis: x + jnp.expand_dims(weights[: x.shape[axis], 0], [n for n in range(x.ndim) if n != axis]),
    lambda x, weights, axis: jax.checkpoint(jnp.sin)(x),
    _shared,
    _pairs,
    _merged,
    _split,
    _scanned,
)  # fmt: skip
_LOSSES: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, weights: jnp.sum(x**2),
    lambda x, weights: jnp.mean(x) * weights[1, 1] + jnp.sum(weights**2),
    lambda x, weights: jnp.mean(x) / weights[0, 1],
    lambda x, weights: jnp.sqrt(jnp.sum(x**2) + 1.0),
)


def _clipped(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the sum of the examples' clipped gradients, and their losses."""

    def step(weights: Any, batch: Any) -> Any:
        losses, gradients = jax.vmap(jax.value_and_grad(loss), (None, 0))(weights, batch)
        norms = jnp.sqrt((gradients**2).sum((1, 2)) + 1.0)
        return losses, (gradients / norms[:, None, None]).sum(0)

    return step


_WAYS = ((jax.value_and_grad, InMinibatches), (jax.value_and_grad, StepInMinibatches), (_clipped, StepInMinibatches))


@settings(max_examples=25)
@given(
    chain=st.lists(st.tuples(st.sampled_from(range(len(_OPERATIONS))), st.integers(0, 2)), min_size=1, max_size=4),
    last=st.sampled_from(range(len(_LOSSES))),
    interleaved=st.booleans(),
    way=st.sampled_from(_WAYS),
)
def test_what_is_not_refused_is_equal(
    chain: list[tuple[int, int]], last: int, interleaved: bool, way: tuple[Any, Any]
) -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch * weights[0, 2]
        for operation, axis in chain:
            x = _OPERATIONS[operation](x, weights, min(axis, x.ndim - 1)) if x.ndim else x
        return _LOSSES[last](x, weights)

    differentiated, rewrite = way
    step = differentiated(loss)
    divided = memprof.apply(rewrite(number=2, interleaved=interleaved))(step)
    try:
        found = jax.jit(divided)(_WEIGHTS, _BATCH)
    except MemprofError:
        event(f"{rewrite.__name__} refused")
        return
    event(f"{rewrite.__name__} divided")
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(_WEIGHTS, _BATCH)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * (1 + float(jnp.abs(other).max())))
