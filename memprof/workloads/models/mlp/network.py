"""The MLP classifier: Dense, LayerNorm, silu, Dropout, Dense, log-softmax."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.layers import checkpointed_activation, dense, layer_norm
from memprof.workloads.losses import CrossEntropy
from memprof.workloads.model import Model, Params, Unpruned
from memprof.workloads.models.mlp.config import MLPConfig
from memprof.workloads.pruning import kept, prune_hidden_units
from memprof.workloads.sharding import BATCH, WIDTH, divided
from memprof.workloads.train_config import TrainConfig

# Columns into the hidden layer, rows out of it (see the Transformer's).
TENSOR_AXES = {"hidden/kernel": -1, "hidden/bias": -1, "norm/scale": -1, "norm/bias": -1, "head/kernel": -2}


class MLP(nn.Module):
    """A classifier with one hidden layer."""

    config: MLPConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return log-probabilities, float32 `(batch, num_classes)`, of inputs `(batch, input_size)`."""
        config, train_config = self.config, self.train_config
        activation = checkpointed_activation(nn.silu, train_config)
        hidden = divided(dense(config.hidden_size, train_config, name="hidden")(inputs), train_config, BATCH, WIDTH)
        hidden = layer_norm(train_config, name="norm")(hidden)
        hidden = activation(hidden)
        hidden = nn.Dropout(config.dropout_rate, deterministic=False)(hidden)
        logits = divided(dense(config.num_classes, train_config, name="head")(hidden), train_config, BATCH)
        return nn.log_softmax(logits.astype(jnp.float32))


def build_mlp(config: MLPConfig, train_config: TrainConfig) -> Model:
    """Return the classifier with its batch: `inputs` float32 `(batch, input_size)`, `labels` int32 `(batch,)`."""
    num_kept = kept(config.hidden_size, train_config.structurally_pruned_fraction)
    whole = MLP(config=config, train_config=train_config)
    return Model(
        module=MLP(config=dataclasses.replace(config, hidden_size=num_kept), train_config=train_config),
        unpruned=None if num_kept == config.hidden_size else Unpruned(whole, lambda params: _prune(params, num_kept)),
        inputs=("inputs",),
        loss=CrossEntropy(),
        batch_shapes={
            "inputs": jax.ShapeDtypeStruct((config.batch_size, config.input_size), jnp.float32),
            "labels": jax.ShapeDtypeStruct((config.batch_size,), jnp.int32),
        },
        sample=lambda rng: labelled_points(rng, config.batch_size, config.input_size, config.num_classes),
        tensor_axes=TENSOR_AXES,
    )


def labelled_points(
    rng: np.random.Generator, num_points: int, num_features: int, num_classes: int
) -> dict[str, np.ndarray]:
    """Return points in float32 `(points, features)`, each labelled with its largests first features."""
    inputs = rng.standard_normal((num_points, num_features), dtype=np.float32)
    return {"inputs": inputs, "labels": np.argmax(inputs[:, :num_classes], axis=1).astype(np.int32)}


def _prune(params: Params, num_kept: int) -> Params:
    pruned, head, keep = prune_hidden_units(params["head"], num_kept, hidden=params["hidden"])
    norm = {name: values[keep] for name, values in params["norm"].items()}
    return {**pruned, "norm": norm, "head": head}
