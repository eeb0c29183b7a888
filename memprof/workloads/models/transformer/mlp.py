"""The MLP of a Transformer's block."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.layers import checkpointed_activation, dense, layer_norm
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.scopes import MLP_UP
from memprof.workloads.sharding import BATCH, LENGTH, WIDTH, divided
from memprof.workloads.train_config import TrainConfig


class MLPBlock(nn.Module):
    """LayerNorm, up projection, gelu, down projection, dropout. The residual is added by the block."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Returns `(batch, length, hidden_size)` in the compute dtype, of the same shape as `hidden`."""
        hidden = layer_norm(self.train_config, name="norm")(hidden)
        hidden = up_and_down(hidden, self.config, self.train_config, BATCH, LENGTH)
        return nn.Dropout(self.config.dropout_rate, deterministic=False)(hidden)


def up_and_down(
    hidden: jax.Array, config: TransformerConfig, train_config: TrainConfig, *dims: str | None
) -> jax.Array:
    """Returns what two projections with gelu between them make of `(..., hidden_size)`, in the same shape.

    They are parts of the module that calls this, `up` and `down`.

    Args:
        dims: what the dimensions but the last are, for devices that share them (see `sharding.divided`).
    """
    activation = checkpointed_activation(nn.gelu, train_config)
    hidden = divided(dense(config.mlp_width, train_config, name="up")(hidden), train_config, *dims, WIDTH)
    hidden = activation(checkpoint_name(hidden, MLP_UP))
    return divided(dense(config.hidden_size, train_config, name="down")(hidden), train_config, *dims)
