"""One layer of a Transformer: attention and MLP block, each added to the residual stream."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.models.transformer.attention import Attention
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.masks import Masking
from memprof.workloads.models.transformer.mlp_block import MLPBlock
from memprof.workloads.networks.checkpointing import checkpointed
from memprof.workloads.train_config import TrainConfig


class Block(nn.Module):
    """Pre-LayerNorm block. Its parts are named `attention` and `mlp`."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, masking: Masking) -> jax.Array:
        """Returns the residual stream after this layer, `(batch, length, hidden_size)`."""
        attention = checkpointed(Attention, "attention", self.train_config)
        mlp = checkpointed(MLPBlock, "mlp", self.train_config)
        hidden = checkpoint_name(hidden, "block_input")
        hidden = hidden + attention(self.config, self.train_config, name="attention")(hidden, masking)
        return hidden + mlp(self.config, self.train_config, name="mlp")(hidden)
