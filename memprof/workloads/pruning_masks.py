"""Magnitude pruning: masks that keep the larger weights of each matrix.

The masks are part of the training state and are applied in the forward pass, so that the pruned weights are zero and
get no gradient. They stay in memory, though, and so do their optimizer state and the masks: see `techniques/prune.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

_PRUNED = "kernel"


def magnitude_masks(params: Mapping[str, Any], fraction: float) -> dict[str, Any]:
    """Returns the masks, bool, in a tree that holds the weight matrices of `params` alone.

    Args:
        params: parameters in nested dictionaries. Of stacked layers each matrix is pruned on its own.
        fraction: the part of each matrix's weights, the smallest ones, that becomes False.
    """
    masks: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            inner = magnitude_masks(value, fraction)
            if inner:
                masks[name] = inner
        elif name == _PRUNED:
            sizes = jnp.abs(value.astype(jnp.float32))
            masks[name] = sizes > jnp.quantile(sizes, fraction, axis=(-2, -1), keepdims=True)
    return masks


def apply_masks(params: Mapping[str, Any], masks: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters with zeros where a mask is False."""
    masked = dict(params)
    for name, mask in masks.items():
        value = params[name]
        masked[name] = apply_masks(value, mask) if isinstance(mask, Mapping) else _masked(value, mask)
    return masked


def _masked(value: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask, value, jnp.zeros((), value.dtype))
