"""Attention masks, and both attention kernels: plain attention and cuDNN's.

Masks are boolean arrays that broadcast to `(batch, heads, queries, keys)`, True where attention is allowed. They
combine by logical and. A query that may attend to no key gets uniform probabilities, not NaN.

cuDNN's fused kernel never holds the probabilities (Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from memprof.errors import MemprofError
from memprof.sources.jax.xla.xla_adapter import cudnn_version

_IMPLEMENTATION = "cudnn"


class Masking(NamedTuple):
    """The limits of attention, in the form that its kernel takes; None if there is no such limit.

    Attributes:
        allowed: the combined mask, for the plain kernel.
        lengths: for a kernel that takes no mask, the number of real tokens of each sequence, int32 `(batch,)`. The real
            tokens come first.
    """

    allowed: jax.Array | None = None
    lengths: jax.Array | None = None


def causal_mask(length: int) -> jax.Array:
    """Return `(1, 1, length, length)`: each token attends to itself and to earlier ones."""
    positions = jnp.arange(length)
    return (positions[:, None] >= positions[None, :])[None, None]


def padding_mask(is_real: jax.Array) -> jax.Array:
    """Return `(batch, 1, 1, length)`: no token attends to padding.

    Args:
        is_real: bool `(batch, length)`, False for padding.
    """
    return is_real[:, None, None, :]


def custom_mask(allowed: jax.Array) -> jax.Array:
    """Return `(batch, 1, length, length)`: the same mask for each head.

    Args:
        allowed: bool `(batch, length, length)`, queries before keys.
    """
    return allowed[:, None]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Return the mask that allows what every given mask allows; None if no mask is given."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, given) if given else None


def attention_probabilities(query: jax.Array, key: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return softmax(q k / sqrt(d)), `(batch, heads, queries, keys)`; the softmax in float32, the result in q's dtype.

    Both products around it stay in the compute dtype, forward and backward: a product with a float32 result would get a
    float32 cotangent, and XLA would then multiply in float32.

    Args:
        query: `(batch, queries, heads, head_size)`.
        key: `(batch, keys, heads, head_size)`, or with fewer heads, each shared by a group of query heads.
        mask: bool, broadcast to the result; None allows all.
    """
    scores = _scores(query * query.shape[-1] ** -0.5, key).astype(jnp.float32)
    if mask is not None:
        # The lowest finite number, not -inf: a row with no allowed key must not become NaN.
        scores = jnp.where(mask, scores, np.finfo(np.float32).min)
    return nn.softmax(scores, axis=-1).astype(query.dtype)


def attended_values(probabilities: jax.Array, value: jax.Array) -> jax.Array:
    """Return the sums of values, `(batch, queries, heads, head_size)`.

    Args:
        probabilities: `(batch, heads, queries, keys)`.
        value: `(batch, keys, heads, head_size)`, or with fewer heads.
    """
    batch, num_heads, queries, keys = probabilities.shape
    num_groups = value.shape[2]
    if num_groups == num_heads:
        return jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
    grouped = probabilities.reshape(batch, num_groups, -1, queries, keys)
    return jnp.einsum("bngqk,bknd->bqngd", grouped, value).reshape(batch, queries, num_heads, -1)


def _scores(query: jax.Array, key: jax.Array) -> jax.Array:
    (batch, queries, num_heads, head_size), (_, keys, num_groups, _) = query.shape, key.shape
    if num_groups == num_heads:
        return jnp.einsum("bqhd,bkhd->bhqk", query, key)
    grouped = query.reshape(batch, queries, num_groups, -1, head_size)
    return jnp.einsum("bqngd,bknd->bngqk", grouped, key).reshape(batch, num_heads, queries, keys)


def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, lengths: jax.Array | None
) -> jax.Array:
    """Return the attended values, of the shape and dtype of `query`.

    Args:
        query, key, value: `(batch, length, heads, head_size)` in float16 or bfloat16. Keys and values have fewer heads
            if groups of query heads share them.
        causal: whether a token attends only to itself and earlier tokens.
        lengths: int32 `(batch,)`, the number of tokens of each sequence that may be attended to; None for all.

    Raises:
        MemprofError: JAX finds no cuDNN. It asks cuDNN for its version before it traces this.
    """
    require_cudnn()
    attended: jax.Array = jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, key_value_seq_lengths=lengths, implementation=_IMPLEMENTATION
    )
    return attended


def require_cudnn() -> None:
    """Raise `MemprofError` if JAX finds no cuDNN."""
    if cudnn_version() is None:
        raise MemprofError(
            "Technique 'flash' needs the cuDNN library, which JAX cannot find: install nvidia-cudnn-cu13, or leave "
            "'flash' out."
        )


def real_lengths(is_real: jax.Array) -> jax.Array:
    """Return the number of real tokens of each sequence, int32 `(batch,)`.

    Args:
        is_real: bool `(batch, length)`, False for padding, which comes last.
    """
    return jnp.sum(is_real, axis=-1, dtype=jnp.int32)
