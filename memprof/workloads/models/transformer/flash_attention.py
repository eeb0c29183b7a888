"""Attention by cuDNN's fused kernel, which never holds the probabilities (Dao et al. 2022, arXiv:2205.14135)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from memprof.capture.xla_adapter import cudnn_version
from memprof.errors import MemprofError

_IMPLEMENTATION = "cudnn"


def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, lengths: jax.Array | None
) -> jax.Array:
    """Returns the attended values, of the shape and dtype of `query`.

    Args:
        query, key, value: `(batch, length, heads, head_size)` in float16 or bfloat16.
        causal: whether a token attends to itself and earlier tokens only.
        lengths: int32 `(batch,)`, the number of tokens of each sequence that may be attended to; None for all.

    Raises:
        MemprofError: JAX finds no cuDNN, which it asks for its version before it traces this.
    """
    require_cudnn()
    attended: jax.Array = jax.nn.dot_product_attention(
        query,
        key,
        value,
        is_causal=causal,
        key_value_seq_lengths=lengths,
        implementation=_IMPLEMENTATION,
    )
    return attended


def require_cudnn() -> None:
    """Raises `MemprofError` where JAX finds no cuDNN."""
    if cudnn_version() is None:
        raise MemprofError(
            "Technique 'flash' needs the cuDNN library, which JAX does not find: install nvidia-cudnn-cu13, or leave"
            " it out."
        )


def real_lengths(is_real: jax.Array) -> jax.Array:
    """Returns how many tokens of each sequence are real, int32 `(batch,)`.

    Args:
        is_real: bool `(batch, length)`, False for padding, which comes last.
    """
    return jnp.sum(is_real, axis=-1, dtype=jnp.int32)
