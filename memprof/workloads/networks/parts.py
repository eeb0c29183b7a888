"""The layers that every network is made of, in the dtypes of the training configuration."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from memprof.workloads.train_config import TrainConfig


def compute_dtype(config: TrainConfig) -> jnp.dtype:
    """Returns the dtype of matrix products and activations."""
    return jnp.dtype(config.compute_dtype)


def param_dtype(config: TrainConfig) -> jnp.dtype:
    """Returns the dtype in which parameters are held."""
    return jnp.dtype(config.param_dtype)


def dense(num_features: int, config: TrainConfig, name: str | None = None) -> nn.Dense:
    """Returns a projection with bias."""
    return nn.Dense(num_features, dtype=compute_dtype(config), param_dtype=param_dtype(config), name=name)


def layer_norm(config: TrainConfig, name: str | None = None) -> nn.LayerNorm:
    """Returns a LayerNorm; Flax computes its mean and variance in float32 whatever the dtypes."""
    return nn.LayerNorm(dtype=compute_dtype(config), param_dtype=param_dtype(config), name=name)
