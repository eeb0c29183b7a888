"""Attention masks: boolean arrays that broadcast to `(batch, heads, queries, keys)`, True where attention is allowed.

They combine by logical and. A query that may attend to nothing gets uniform probabilities, not NaN (see `attention`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Masking(NamedTuple):
    """What attention may look at, in the form that its kernel takes; None where there is no such limit.

    Attributes:
        allowed: for the plain kernel: the combined mask.
        lengths: for a kernel that takes no mask: the number of real tokens of each sequence, int32 `(batch,)`. The
            real tokens come first.
    """

    allowed: jax.Array | None = None
    lengths: jax.Array | None = None


def causal_mask(length: int) -> jax.Array:
    """Returns `(1, 1, length, length)`: each token attends to itself and to earlier ones."""
    positions = jnp.arange(length)
    return (positions[:, None] >= positions[None, :])[None, None]


def padding_mask(is_real: jax.Array) -> jax.Array:
    """Returns `(batch, 1, 1, length)`: nothing attends to padding.

    Args:
        is_real: bool `(batch, length)`, False for padding.
    """
    return is_real[:, None, None, :]


def custom_mask(allowed: jax.Array) -> jax.Array:
    """Returns `(batch, 1, length, length)`: the same mask for each head.

    Args:
        allowed: bool `(batch, length, length)`, queries before keys.
    """
    return allowed[:, None]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Returns the mask that allows what every given mask allows; None where no mask is given."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, given) if given else None
