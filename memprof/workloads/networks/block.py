"""One layer of a Transformer: attention and MLP block, each added to the residual stream."""

from __future__ import annotations

import flax.linen as nn
import jax

from memprof.workloads.models.transformer import TransformerConfig
from memprof.workloads.networks.attention import Attention
from memprof.workloads.networks.mlp_block import MLPBlock
from memprof.workloads.train_config import TrainConfig


class Block(nn.Module):
    """Pre-LayerNorm block. Its parts are named `attention` and `mlp`."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Returns the residual stream after this layer, `(batch, length, hidden_size)`."""
        hidden = hidden + Attention(self.config, self.train_config, name="attention")(hidden, mask)
        return hidden + MLPBlock(self.config, self.train_config, name="mlp")(hidden)
