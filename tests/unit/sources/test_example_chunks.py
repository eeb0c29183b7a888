"""The part of a loss in which examples do not mix, in chunks: gradients stay equal, and values are those of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_arrays import normal

import memprof
from memprof.analysis.records.rewrites import ExamplesInChunks
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.example_chunks import examples_in_chunks
from memprof.sources.jax.tracing.jit_adapter import all_equations

pytestmark = pytest.mark.usefixtures("quick_compiles")

_EXAMPLES, _WIDTH, _HIDDEN = 8, 4, 64
PARAMS = {
    "first": normal(0, (_WIDTH, _HIDDEN)) / 4,
    "last": normal(1, (_HIDDEN, _WIDTH)) / 8,
    "own": normal(2, (_WIDTH, _WIDTH)),
}
BATCH = {"x": normal(3, (_EXAMPLES, _WIDTH)), "y": normal(4, (_EXAMPLES, _WIDTH))}


def encoded(params: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ params["first"]) @ params["last"])


def contrastive(params: Any, batch: Any) -> Any:
    """Each example is compared with all others, as in CLIP."""
    one, other = encoded(params, batch["x"]), encoded(params, batch["y"])
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(one @ other.T)))


def recurrent(params: Any, batch: Any) -> Any:
    """An encoder before a recurrence over the examples, which are times; the loss also returns a metric."""

    def turn(state: Any, x: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state @ params["own"] + x)
        return state, state

    _, states = jax.lax.scan(turn, jnp.zeros(_WIDTH), encoded(params, batch["x"]))
    return jnp.mean((states - batch["y"]) ** 2)


def normalised(params: Any, batch: Any) -> Any:
    """A sum over the examples, divided by another one."""
    results = encoded(params, batch["x"])
    return jnp.mean((results - batch["y"]) ** 2) / jnp.mean(results**2)


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, cotangent: (2 * cotangent,))


def with_own_derivatives(params: Any, batch: Any) -> Any:
    """JAX calls the rules of custom derivatives after the trace of the chunk."""
    hidden = jax.nn.relu(jax.nn.silu(doubled(batch["x"] @ params["first"]))) @ params["last"]
    return jnp.mean(hidden @ hidden.T)


def with_broadcast_bias(params: Any, batch: Any) -> Any:
    """Haiku broadcasts a bias to all rows before it is added."""
    hidden = batch["x"] @ params["first"]
    hidden = jnp.tanh(hidden + jnp.broadcast_to(jnp.sin(params["first"][0]), hidden.shape))
    results = jax.nn.relu(hidden) @ params["last"]
    return jnp.mean(results @ results.T)


def with_table_of_rows(params: Any, batch: Any) -> Any:
    """Each row has its own row of a table made from parameters, in many steps that read the last one twice."""
    table = jnp.tile(params["own"], (_EXAMPLES // _WIDTH, 1))
    for _ in range(40):
        table = table - table * 0.01
    results = encoded(params, batch["x"] + table)
    return jnp.mean(results @ results.T)


def two_views(params: Any, batch: Any) -> Any:
    """One call of the encoder for two views of each example, which are compared with all others, as in SimCLR."""
    results = encoded(params, jnp.concatenate([batch["x"], batch["y"]]))
    similar = jnp.where(jnp.eye(2 * _EXAMPLES), -1e9, results @ results.T)
    return -jnp.mean(jax.nn.log_softmax(similar)[jnp.arange(2 * _EXAMPLES), jnp.arange(2 * _EXAMPLES) ^ _EXAMPLES])


LOSSES = (contrastive, recurrent, normalised, with_own_derivatives, with_broadcast_bias, with_table_of_rows, two_views)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_stay_equal(loss: Callable[..., Any], interleaved: bool) -> None:
    def step(params: Any, batch: Any) -> Any:
        return jax.value_and_grad(loss)(params, batch)

    def loop(params: Any, batch: Any) -> Any:
        """A loop in a jit, which a traced value must not leave."""
        return jax.lax.scan(lambda carry, _: (carry, step(params, batch)), 0, None, length=1)[1]

    changed: Any = memprof.apply(ExamplesInChunks(number=4, interleaved=interleaved))(jax.jit(loop))
    assert len(changed.trace(PARAMS, BATCH).jaxpr.jaxpr.invars) == len(jax.tree.leaves((PARAMS, BATCH)))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6),
        jax.jit(loop)(PARAMS, BATCH),
        changed(PARAMS, BATCH),
    )


@pytest.mark.parametrize(
    ("loss", "num_rows"),
    [
        (contrastive, _EXAMPLES),
        (recurrent, _EXAMPLES),
        (with_broadcast_bias, _EXAMPLES),
        (two_views, 2 * _EXAMPLES),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_no_hidden_value_of_all_examples_exists(loss: Callable[..., Any], num_rows: int) -> None:
    assert num_rows * _HIDDEN in _sizes(jax.grad(loss))
    with examples_in_chunks(ExamplesInChunks(number=4)) as losses:
        sizes = _sizes(jax.grad(loss))
    assert [each.num_examples for each in losses] == [_EXAMPLES]
    assert num_rows * _HIDDEN not in sizes
    assert num_rows // 4 * _HIDDEN in sizes


def _sizes(function: Callable[..., Any]) -> set[int]:
    """The sizes of the values that a function makes, besides the gradients of its weights."""
    jaxpr = jax.make_jaxpr(function)(PARAMS, BATCH).jaxpr
    made = [var.aval.shape for each in all_equations(jaxpr) for var in each.outvars]
    return {prod(shape) for shape in made if shape not in {array.shape for array in PARAMS.values()}}


def test_a_loss_whose_examples_mix_at_once_is_refused() -> None:
    def step(params: Any, batch: Any) -> Any:
        return jax.grad(lambda params: jnp.sum(jax.nn.softmax(params["own"] @ batch["x"].T) ** 2))(params)

    with pytest.raises(MemprofError, match="cannot be divided into chunks of examples: its examples mix too early"):
        jax.make_jaxpr(memprof.apply(ExamplesInChunks(number=4))(step))(PARAMS, BATCH)


@pytest.mark.parametrize("number", [1, 0, -2, 2.5, "4"])
def test_an_invalid_number_is_refused(number: Any) -> None:
    with pytest.raises(MemprofError, match="ExamplesInChunks needs an integer of at least 2"):
        ExamplesInChunks(number=number)
