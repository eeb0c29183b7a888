"""One layer of a Transformer: attention and MLP block, each added to the residual stream."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.layers import checkpointed, checkpointed_activation, dense, layer_norm
from memprof.workloads.models.transformer.attention import Masking, attention_probabilities, flash_attention
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.scopes import ATTENDED, ATTENTION, ATTENTION_OUT, BLOCK_INPUT, MLP, MLP_UP, QKV
from memprof.workloads.train_config import TrainConfig


class Attention(nn.Module):
    """LayerNorm, QKV projection, attention, output projection, dropout. The residual is added by the block.

    The norm is inside, so that what is saved or recomputed for this module is all that the residual stream does not
    hold already.
    """

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, masking: Masking) -> jax.Array:
        """Returns `(batch, length, hidden_size)` in the compute dtype.

        Args:
            hidden: `(batch, length, hidden_size)`.
            masking: what may be attended to.
        """
        config, train_config = self.config, self.train_config
        batch, length, _ = hidden.shape
        heads_size = config.num_heads * config.head_width
        hidden = layer_norm(train_config, name="norm")(hidden)
        qkv = checkpoint_name(dense(3 * heads_size, train_config, name="qkv")(hidden), QKV)
        qkv = qkv.reshape(batch, length, 3, config.num_heads, config.head_width)
        query, key, value = (qkv[:, :, part] for part in range(3))
        if train_config.attention_kernel == "flash":
            attended = flash_attention(query, key, value, causal=config.causal, lengths=masking.lengths)
        else:
            probabilities = attention_probabilities(query, key, masking.allowed)
            probabilities = nn.Dropout(config.attention_dropout_rate, deterministic=False)(probabilities)
            attended = jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
        attended = checkpoint_name(attended.reshape(batch, length, heads_size), ATTENDED)
        result = checkpoint_name(dense(config.hidden_size, train_config, name="out")(attended), ATTENTION_OUT)
        return nn.Dropout(config.dropout_rate, deterministic=False)(result)


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
        hidden = activation(checkpoint_name(hidden, MLP_UP))
        hidden = dense(config.hidden_size, train_config, name="down")(hidden)
        return nn.Dropout(config.dropout_rate, deterministic=False)(hidden)


class Block(nn.Module):
    """Pre-LayerNorm block. Its parts are named `attention` and `mlp`."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, masking: Masking) -> jax.Array:
        """Returns the residual stream after this layer, `(batch, length, hidden_size)`."""
        attention = checkpointed(Attention, ATTENTION, self.train_config)
        mlp = checkpointed(MLPBlock, MLP, self.train_config)
        hidden = checkpoint_name(hidden, BLOCK_INPUT)
        hidden = hidden + attention(self.config, self.train_config, name=ATTENTION)(hidden, masking)
        return hidden + mlp(self.config, self.train_config, name=MLP)(hidden)
