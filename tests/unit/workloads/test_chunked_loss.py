"""The loss in chunks: the same sums, and no array as large as all logits."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.losses import split_tokens
from memprof.workloads.models.transformer import TINY
from memprof.workloads.models.transformer.network import build_transformer
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")

KEY = jax.random.PRNGKey(0)
PLAIN = dataclasses.replace(TINY, batch_size=2, seq_len=6, num_layers=1, dropout_rate=0.0)


def batch_of(config):
    batch = {"inputs": jnp.arange(12).reshape(2, 6) * 5 % 64, "labels": jnp.arange(12).reshape(2, 6) * 7 % 64}
    if config.padding_mask:
        batch["input_mask"] = jnp.array([[True] * 6, [True] * 2 + [False] * 4])
    return batch


@pytest.mark.parametrize(("num_chunks", "changes"), [(12, {"tied_embeddings": True}), (2, {"padding_mask": True})])
def test_metrics_and_gradients_are_those_of_the_whole(num_chunks, changes):
    config = dataclasses.replace(PLAIN, **changes)
    whole, chunked = (build_transformer(config, TrainConfig(num_loss_chunks=number)) for number in (1, num_chunks))
    params, batch = jax.jit(whole.init_params)(KEY), batch_of(config)

    def gradients_and_metrics(model):
        def loss(params):
            metrics = model.metrics(params, batch, KEY)
            return metrics["loss"][0], metrics

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    (expected_gradients, expected), (gradients, metrics) = map(gradients_and_metrics, (whole, chunked))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradients, expected_gradients)


def test_no_value_is_as_large_as_all_logits():
    model = build_transformer(PLAIN, TrainConfig(num_loss_chunks=4))
    params, batch = jax.eval_shape(model.init_params, KEY), batch_of(PLAIN)
    jaxpr = jax.make_jaxpr(jax.grad(lambda params: model.metrics(params, batch, KEY)["loss"][0]))(params)
    logits = 12 * 64
    assert max(sizes_with_vocabulary(jaxpr.jaxpr)) == logits / 4


def sizes_with_vocabulary(jaxpr):
    """The sizes of all values `(..., vocabulary)` except the output layer's own parameters and their gradients."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            shape = variable.aval.shape
            if shape[-1:] == (64,) and shape[0] != 32 and shape != (1, 32, 64):
                yield variable.aval.size
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from sizes_with_vocabulary(inner)


def test_tokens_are_split_in_their_order():
    split = split_tokens({"labels": jnp.arange(12).reshape(2, 6), "hidden": jnp.zeros((2, 6, 5))}, 3)
    assert split["labels"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert split["hidden"].shape == (3, 4, 5)
