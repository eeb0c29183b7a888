"""Multi-head self-attention with one fused projection to queries, keys and values."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.flash_attention import flash_attention
from memprof.workloads.models.transformer.masks import Masking
from memprof.workloads.networks.parts import dense, layer_norm
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
        qkv = checkpoint_name(dense(3 * heads_size, train_config, name="qkv")(hidden), "qkv")
        qkv = qkv.reshape(batch, length, 3, config.num_heads, config.head_width)
        query, key, value = (qkv[:, :, part] for part in range(3))
        if train_config.attention_kernel == "flash":
            attended = flash_attention(query, key, value, causal=config.causal, lengths=masking.lengths)
        else:
            probabilities = attention_probabilities(query, key, masking.allowed)
            probabilities = nn.Dropout(config.attention_dropout_rate, deterministic=False)(probabilities)
            attended = jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
        attended = checkpoint_name(attended.reshape(batch, length, heads_size), "attention")
        result = checkpoint_name(dense(config.hidden_size, train_config, name="out")(attended), "attention_out")
        return nn.Dropout(config.dropout_rate, deterministic=False)(result)


def attention_probabilities(query: jax.Array, key: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns softmax(q k / sqrt(d)), `(batch, heads, queries, keys)`; the softmax in float32, the result in q's dtype.

    Both products around it stay in the compute dtype, forward and backward: one with a float32 result would get a
    float32 cotangent, and XLA would then multiply in float32.

    Args:
        query: `(batch, queries, heads, head_size)`.
        key: `(batch, keys, heads, head_size)`.
        mask: bool, broadcasts to the result; None allows all.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query * query.shape[-1] ** -0.5, key).astype(jnp.float32)
    if mask is not None:
        # The lowest finite number, not -inf: a row in which nothing is allowed must not become NaN.
        scores = jnp.where(mask, scores, np.finfo(np.float32).min)
    return nn.softmax(scores, axis=-1).astype(query.dtype)
