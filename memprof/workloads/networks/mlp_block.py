"""The MLP block of a Transformer."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads.models.transformer import TransformerConfig
from memprof.workloads.train_config import TrainConfig


class MLPBlock(nn.Module):
    """LayerNorm, up projection, gelu, down projection, dropout. The residual is added by the block."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Returns `(batch, length, hidden_size)` in the compute dtype, of the same shape as `hidden`."""
        config = self.config
        dtype = jnp.dtype(self.train_config.compute_dtype)
        hidden = nn.LayerNorm(dtype=dtype, name="norm")(hidden)
        hidden = nn.Dense(config.mlp_width, dtype=dtype, name="up")(hidden)
        hidden = nn.gelu(hidden)
        hidden = nn.Dense(config.hidden_size, dtype=dtype, name="down")(hidden)
        return nn.Dropout(config.dropout_rate, deterministic=False)(hidden)
