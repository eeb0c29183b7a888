"""The MLP classifier: Dense, LayerNorm, silu, Dropout, Dense, log-softmax."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads import synthetic
from memprof.workloads.losses import CrossEntropy
from memprof.workloads.model import Model
from memprof.workloads.models.mlp import MLPConfig
from memprof.workloads.train_config import TrainConfig


class MLP(nn.Module):
    """A classifier with one hidden layer. Parameters are float32 whatever the compute dtype."""

    config: MLPConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns log-probabilities, float32 `(batch, num_classes)`, of inputs `(batch, input_size)`."""
        dtype = jnp.dtype(self.train_config.compute_dtype)
        hidden = nn.Dense(self.config.hidden_size, dtype=dtype, name="hidden")(inputs)
        hidden = nn.LayerNorm(dtype=dtype, name="norm")(hidden)
        hidden = nn.silu(hidden)
        hidden = nn.Dropout(self.config.dropout_rate, deterministic=False)(hidden)
        logits = nn.Dense(self.config.num_classes, dtype=dtype, name="head")(hidden)
        return nn.log_softmax(logits.astype(jnp.float32))


def build_mlp(config: MLPConfig, train_config: TrainConfig) -> Model:
    """Returns the classifier with its batch: `inputs` float32 `(batch, input_size)`, `labels` int32 `(batch,)`."""
    return Model(
        module=MLP(config=config, train_config=train_config),
        inputs=("inputs",),
        loss=CrossEntropy(),
        batch_shapes={
            "inputs": jax.ShapeDtypeStruct((config.batch_size, config.input_size), jnp.float32),
            "labels": jax.ShapeDtypeStruct((config.batch_size,), jnp.int32),
        },
        sample=lambda rng: synthetic.labelled_points(rng, config.batch_size, config.input_size, config.num_classes),
    )
