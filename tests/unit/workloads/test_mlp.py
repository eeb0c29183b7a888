"""The MLP classifier: its parameters, its log-probabilities and its precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.models.mlp.config import MLPConfig
from memprof.workloads.models.mlp.network import build_mlp
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")

CONFIG = MLPConfig(batch_size=2, input_size=3, hidden_size=4, num_classes=5)
KEY = jax.random.PRNGKey(0)
INPUTS = jnp.array([[1.0, -2, 3], [0, 1, 0]])


def test_the_parameters_are_two_dense_layers_and_a_norm():
    shapes = jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(build_mlp(CONFIG, TrainConfig()).init_params, KEY))
    assert shapes == {
        "hidden": {"kernel": (3, 4), "bias": (4,)},
        "norm": {"scale": (4,), "bias": (4,)},
        "head": {"kernel": (4, 5), "bias": (5,)},
    }


def test_the_result_is_float32_log_probabilities_with_bf16_in_between():
    model = build_mlp(CONFIG, TrainConfig(compute_dtype="bfloat16"))
    params = model.init_params(KEY)
    result, captured = model.module.apply(
        {"params": params}, INPUTS, rngs={"dropout": KEY}, capture_intermediates=True, mutable=["intermediates"]
    )
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(np.exp(result).sum(axis=-1), [1, 1], rtol=1e-5)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert captured["intermediates"]["hidden"]["__call__"][0].dtype == jnp.bfloat16
    assert captured["intermediates"]["head"]["__call__"][0].dtype == jnp.bfloat16
