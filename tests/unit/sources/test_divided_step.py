"""A step computed one minibatch after another with its derivatives: equal to the step, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core
from random_arrays import normal

import memprof
from memprof.analysis.records.rewrites import StepInMinibatches
from memprof.errors import MemprofError

pytestmark = pytest.mark.usefixtures("quick_compiles")

_WIDTH, _EXAMPLES, _TOKENS, _VOCABULARY, _PARTS = 8, 8, 5, 11, 4  # the weights are as long as the batch
PARAMS = {
    "table": normal(0, (_VOCABULARY, _WIDTH)),
    "layers": normal(1, (3, _WIDTH, _WIDTH)),
    "kernel": normal(2, (3, _WIDTH, _WIDTH)),
    "head": normal(3, (_WIDTH, _VOCABULARY)),
}
BATCH = {
    "tokens": np.arange(_EXAMPLES * _TOKENS).reshape(_EXAMPLES, _TOKENS) % _VOCABULARY,
    "x": normal(4, (_EXAMPLES, _TOKENS, _WIDTH)),
    "mask": np.arange(_TOKENS) < 1 + np.arange(_EXAMPLES)[:, None] % _TOKENS,
}


def tokens(params: Any, example: Any, key: Any) -> Any:
    """The loss of a language model with scanned layers, attention and an embedding table."""

    def layer(x: Any, weights: Any) -> tuple[Any, None]:
        scores = jnp.where(example["mask"], (x @ weights) @ x.T, -1e9)
        return x + jax.nn.softmax(scores) @ x, None

    x, _ = jax.lax.scan(jax.checkpoint(layer), params["table"][example["tokens"]], params["layers"])
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], example["tokens"])
    return (losses * example["mask"]).sum() / example["mask"].sum()


def convolution(params: Any, example: Any, key: Any) -> Any:
    numbers = ("NWC", "WIO", "NWC")
    hidden = jax.lax.conv_general_dilated(example["x"][None], params["kernel"], (1,), "SAME", dimension_numbers=numbers)
    pooled = jax.lax.reduce_window(jax.nn.gelu(hidden), -jnp.inf, jax.lax.max, (1, 2, 1), (1, 2, 1), "VALID")
    return (pooled**2).mean()


def spectral(params: Any, example: Any, key: Any) -> Any:
    modes = jnp.fft.rfft(example["x"], axis=0) @ params["layers"][0]
    return (jnp.fft.irfft(modes, axis=0) ** 2).mean()


def dropout(params: Any, example: Any, key: Any) -> Any:
    hidden = example["x"] @ params["layers"][0]
    kept = jax.random.bernoulli(jax.random.fold_in(key, 3), 0.7, hidden.shape)
    return (jnp.where(kept, hidden, 0.0) ** 2).mean()


def recurrence(params: Any, example: Any, key: Any) -> Any:
    def cell(hidden: Any, x: Any) -> tuple[Any, Any]:
        hidden = jnp.tanh(x @ params["layers"][0] + hidden @ params["layers"][1])
        return hidden, hidden

    _, made = jax.lax.scan(cell, jnp.zeros(_WIDTH), example["x"])
    return (made**2).mean()


def _clipped(loss: Callable[..., Any], *, keys: Callable[[int], Any] = jax.random.key) -> Callable[[Any, Any], Any]:
    """Return a step that adds up the clipped gradients of the examples, and updates the parameters."""

    def step(params: Any, batch: Any) -> Any:
        of_examples = jax.random.split(keys(5), _EXAMPLES)
        losses, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, batch, of_examples)
        norms = jax.vmap(optax.tree.norm)(grads)
        scales = 1.0 / jnp.maximum(1.0, norms)
        total = jax.tree.map(lambda each: jnp.tensordot(scales, each, 1), grads)
        return jax.tree.map(lambda one, other: one - 0.1 * other, params, total), losses.mean(), norms

    return step


@pytest.mark.parametrize(
    ("loss", "interleaved"),
    [(tokens, False), (convolution, True), (dropout, True), (recurrence, False), (spectral, False)],
)
def test_clipped_gradients_are_those_of_all_examples_at_once(loss: Callable[..., Any], interleaved: bool) -> None:
    _assert_equal(_clipped(loss), StepInMinibatches(number=_PARTS, interleaved=interleaved))


def test_keys_may_be_raw() -> None:
    _assert_equal(_clipped(dropout, keys=jax.random.PRNGKey), StepInMinibatches(number=_PARTS))


def test_numbers_of_keys_that_depend_on_each_other_are_drawn_together() -> None:
    """With such keys, a `vmap` draws the numbers of all from the first key, so those of a part would be others."""
    _assert_equal(_clipped(dropout, keys=partial(jax.random.key, impl="unsafe_rbg")), StepInMinibatches(number=_PARTS))


def test_gradients_may_be_taken_within_a_jit_in_the_vmap() -> None:
    _assert_equal(_clipped(lambda *args: jax.jit(tokens)(*args)), StepInMinibatches(number=_PARTS))


def test_the_whole_batch_may_have_one_loss() -> None:
    """A loss that is no sum over the examples, such as the square of one, has no minibatches of its own."""

    def step(params: Any, batch: Any) -> Any:
        def losses(params: Any) -> Any:
            return jax.vmap(tokens, in_axes=(None, 0, None))(params, batch, None)

        values, pull = jax.vjp(losses, params)
        return pull(jnp.ones_like(values)), values

    _assert_equal(step, StepInMinibatches(number=_PARTS))


def test_the_random_numbers_of_a_part_are_drawn_for_it_alone() -> None:
    changed = memprof.apply(StepInMinibatches(number=_PARTS))(_clipped(dropout))
    traced = jax.jit(changed).trace(PARAMS, BATCH).jaxpr
    drawn = {each.outvars[0].aval.shape for each in _equations(traced.jaxpr) if each.primitive.name == "random_bits"}
    assert drawn == {(_EXAMPLES // _PARTS, _TOKENS, _WIDTH)}


def test_sums_of_16_bit_gradients_have_32_bits() -> None:
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    changed = memprof.apply(StepInMinibatches(number=_PARTS))(_clipped(dropout))
    traced = jax.make_jaxpr(changed)(params, BATCH)
    (loop,) = [each for each in traced.jaxpr.eqns if each.primitive.name == "scan"]
    assert {str(var.aval.dtype) for var in loop.outvars if var.aval.shape == PARAMS["layers"].shape} == {"float32"}
    assert {str(each.dtype) for each in jax.tree.leaves(jax.eval_shape(changed, params, BATCH)[0])} == {"bfloat16"}


def test_no_product_has_all_examples() -> None:
    changed = memprof.apply(StepInMinibatches(number=_PARTS))(_clipped(convolution))
    traced = jax.make_jaxpr(changed)(PARAMS, BATCH)
    products = [each for each in _equations(traced.jaxpr) if each.primitive.name == "conv_general_dilated"]
    assert products
    # The gradients of the kernels are one convolution with a group for each example.
    assert {each.params["feature_group_count"] for each in products} == {1, _EXAMPLES // _PARTS}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda params, batch: params, "it reads no array with several examples"),
        (jax.grad(lambda params, batch: (params["head"] ** 2).sum()), "it reads no array with several examples"),
        (
            jax.grad(lambda params, batch: jnp.linalg.det(batch["x"][:, 0] @ params["layers"][0])),
            "its examples mix too early",
        ),
    ],
)
def test_other_steps_are_refused(step: Callable[..., Any], reason: str) -> None:
    with pytest.raises(MemprofError, match=f"the step cannot be divided into minibatches: .*({reason})"):
        memprof.apply(StepInMinibatches(number=2))(step)(PARAMS, BATCH)


def _assert_equal(step: Callable[..., Any], rewrite: StepInMinibatches) -> None:
    expected = jax.jit(step)(PARAMS, BATCH)
    found = jax.jit(memprof.apply(rewrite)(step))(PARAMS, BATCH)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6 * float(1 + jnp.abs(other).max()))


def _equations(jaxpr: core.Jaxpr) -> list[Any]:
    return [
        inner
        for each in jaxpr.eqns
        for inner in [each, *(one for part in core.jaxprs_in_params(each.params) for one in _equations(part))]
    ]
