"""Multi-head self-attention with one fused projection to queries, keys and values."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.models.transformer import TransformerConfig
from memprof.workloads.train_config import TrainConfig


class Attention(nn.Module):
    """LayerNorm, QKV projection, attention, output projection, dropout. The residual is added by the block.

    The norm is inside, so that what is saved or recomputed for this module is all that the residual stream does not
    hold already.
    """

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Returns `(batch, length, hidden_size)` in the compute dtype.

        Args:
            hidden: `(batch, length, hidden_size)`.
            mask: bool, broadcasts to `(batch, heads, queries, keys)`; None allows all.
        """
        config = self.config
        dtype = jnp.dtype(self.train_config.compute_dtype)
        batch, length, _ = hidden.shape
        hidden = nn.LayerNorm(dtype=dtype, name="norm")(hidden)
        qkv = nn.Dense(3 * config.hidden_size, dtype=dtype, name="qkv")(hidden)
        qkv = qkv.reshape(batch, length, 3, config.num_heads, config.head_size)
        query, key, value = (qkv[:, :, part] for part in range(3))
        probabilities = attention_probabilities(query, key, mask)
        probabilities = nn.Dropout(config.attention_dropout_rate, deterministic=False)(probabilities)
        attended = jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
        attended = attended.reshape(batch, length, config.hidden_size)
        result = nn.Dense(config.hidden_size, dtype=dtype, name="out")(attended)
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
