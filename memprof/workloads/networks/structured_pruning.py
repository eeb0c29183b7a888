"""Structured pruning: whole attention heads and hidden units go, those with the smallest weights first.

What is left is a smaller dense network, which is why it saves memory everywhere, unlike masks. A unit's importance is
the norm of all weights that lead to it and from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

LayerParams = Mapping[str, jax.Array]
Pruned = dict[str, jax.Array]


def kept(num_units: int, fraction: float) -> int:
    """Returns how many of the units are left when that fraction is pruned: at least one."""
    return max(1, num_units - math.floor(num_units * fraction))


def prune_hidden_units(up: LayerParams, down: LayerParams, num_kept: int) -> tuple[Pruned, Pruned, jax.Array]:
    """Returns two projections with the most important units between them alone, and which units these are."""
    keep = most_important(energy(up["kernel"], axes=(0,)) + energy(down["kernel"], axes=(1,)), num_kept)
    return (
        {"kernel": up["kernel"][:, keep], "bias": up["bias"][keep]},
        {**down, "kernel": down["kernel"][keep]},
        keep,
    )


def energy(weights: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Returns the squared norm over some axes, in float32."""
    return jnp.sum(jnp.square(weights.astype(jnp.float32)), axis=axes)


def most_important(importance: jax.Array, num_kept: int) -> jax.Array:
    """Returns the indices of the largest, in their old order."""
    return jnp.sort(jnp.argsort(importance, descending=True)[:num_kept])
