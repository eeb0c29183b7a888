"""One layer of a Transformer: attention and MLP block (or experts), each added to the residual stream."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.layers import checkpointed, dense, norm, rotated
from memprof.workloads.models.transformer.attention import (
    Masking,
    attended_values,
    attention_probabilities,
    flash_attention,
)
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.experts import MixtureOfExperts
from memprof.workloads.models.transformer.mlp import MLPBlock
from memprof.workloads.scopes import ATTENDED, ATTENTION, ATTENTION_OUT, BLOCK_INPUT, MLP, QKV
from memprof.workloads.sharding import BATCH, LENGTH, WHOLE, WIDTH, divided
from memprof.workloads.train_config import TrainConfig

# The axis that tensor parallelism divides: columns of projections into attention and MLP, rows of those out of them,
# and the vocabulary (Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053).
TENSOR_AXES = {
    "token_embedding/embedding": -2,
    "head/kernel": -1,
    "head/bias": -1,
    "attention/qkv/kernel": -1,
    "attention/qkv/bias": -1,
    "attention/out/kernel": -2,
    "mlp/up/kernel": -1,
    "mlp/up/bias": -1,
    "mlp/gate/kernel": -1,
    "mlp/gate/bias": -1,
    "mlp/down/kernel": -2,
    "experts/up/kernel": -1,
    "experts/up/bias": -1,
    "experts/gate/kernel": -1,
    "experts/gate/bias": -1,
    "experts/down/kernel": -2,
}


class Attention(nn.Module):
    """Norm, QKV projection, attention, output projection, dropout. The block adds the residual.

    The norm is inside, so that the values saved or recomputed for this module are exactly those that the residual
    stream does not hold already.
    """

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, masking: Masking) -> jax.Array:
        """Return `(batch, length, hidden_size)` in the compute dtype.

        Args:
            hidden: `(batch, length, hidden_size)`.
            masking: the limits of attention.
        """
        config, train_config = self.config, self.train_config
        batch, length, _ = hidden.shape
        heads_size = config.num_heads * config.head_width
        hidden = norm(config.norm, train_config, name="norm")(hidden)
        projected = (config.num_heads + 2 * config.kv_heads) * config.head_width
        qkv = dense(projected, train_config, name="qkv", has_bias=config.biases)(hidden)
        qkv = checkpoint_name(qkv, QKV)
        query, key, value = (
            divided(part, train_config, BATCH, LENGTH, WIDTH) for part in split_heads(qkv, config, train_config)
        )
        if config.positions == "rotary":
            positions = jnp.arange(length)[None]
            query, key = rotated(query, positions), rotated(key, positions)
        # Each device attends from its part of a sequence to the whole sequence.
        key, value = (divided(part, train_config, BATCH, WHOLE, WIDTH) for part in (key, value))
        if train_config.attention_kernel == "flash":
            attended = flash_attention(query, key, value, causal=config.causal, lengths=masking.lengths)
        else:
            probabilities = attention_probabilities(query, key, masking.allowed)
            probabilities = nn.Dropout(config.attention_dropout_rate, deterministic=False)(probabilities)
            attended = attended_values(probabilities, value)
        attended = divided(attended.reshape(batch, length, heads_size), train_config, BATCH, LENGTH, WIDTH)
        attended = checkpoint_name(attended, ATTENDED)
        result = dense(config.hidden_size, train_config, name="out", has_bias=config.biases)(attended)
        result = checkpoint_name(divided(result, train_config, BATCH, LENGTH), ATTENTION_OUT)
        return nn.Dropout(config.dropout_rate, deterministic=False)(result)


def split_heads(qkv: jax.Array, config: TransformerConfig, train_config: TrainConfig) -> tuple[jax.Array, ...]:
    """Split a projection into queries, keys and values, each `(batch, length, heads, head_size)`.

    The columns of the projection are all queries, then all keys, then all values. If devices divide these columns, some
    would have no queries or no values; for them the columns are ordered by head, or by group.
    """
    if config.kv_heads != config.num_heads:
        return _split_groups(qkv, config, train_config)
    if train_config.tensor_parallel:
        by_head = qkv.reshape(*qkv.shape[:2], config.num_heads, 3, config.head_width)
        return tuple(by_head[:, :, :, part] for part in range(3))
    by_part = qkv.reshape(*qkv.shape[:2], 3, config.num_heads, config.head_width)
    return tuple(by_part[:, :, part] for part in range(3))


def _split_groups(qkv: jax.Array, config: TransformerConfig, train_config: TrainConfig) -> tuple[jax.Array, ...]:
    """Split a projection in the same way if groups of query heads share a key/value head."""
    size, shape = config.num_heads // config.kv_heads, qkv.shape[:2]
    if train_config.tensor_parallel:
        by_group = qkv.reshape(*shape, config.kv_heads, size + 2, config.head_width)
        query = by_group[:, :, :, :size].reshape(*shape, config.num_heads, config.head_width)
        return query, by_group[:, :, :, size], by_group[:, :, :, size + 1]
    heads = qkv.reshape(*shape, -1, config.head_width)
    query, key, value = jnp.split(heads, [config.num_heads, config.num_heads + config.kv_heads], axis=2)
    return query, key, value


class Block(nn.Module):
    """Pre-LayerNorm block. Its parts are named `attention` and `mlp`."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, masking: Masking) -> jax.Array:
        """Return the residual stream after this layer, `(batch, length, hidden_size)`."""
        attention = checkpointed(Attention, ATTENTION, self.train_config)
        mlp = checkpointed(MixtureOfExperts if self.config.num_experts else MLPBlock, MLP, self.train_config)
        hidden = checkpoint_name(hidden, BLOCK_INPUT)
        hidden = hidden + attention(self.config, self.train_config, name=ATTENTION)(hidden, masking)
        return hidden + mlp(self.config, self.train_config, name=MLP)(hidden)
