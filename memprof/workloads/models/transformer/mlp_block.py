"""The MLP block of a Transformer."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.networks.checkpointing import checkpointed_activation
from memprof.workloads.networks.parts import dense, layer_norm
from memprof.workloads.train_config import TrainConfig


class MLPBlock(nn.Module):
    """LayerNorm, up projection, gelu, down projection, dropout. The residual is added by the block."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Returns `(batch, length, hidden_size)` in the compute dtype, of the same shape as `hidden`."""
        config, train_config = self.config, self.train_config
        activation = checkpointed_activation(nn.gelu, train_config)
        hidden = layer_norm(train_config, name="norm")(hidden)
        hidden = dense(config.mlp_width, train_config, name="up")(hidden)
        hidden = activation(checkpoint_name(hidden, "mlp_up"))
        hidden = dense(config.hidden_size, train_config, name="down")(hidden)
        return nn.Dropout(config.dropout_rate, deterministic=False)(hidden)
