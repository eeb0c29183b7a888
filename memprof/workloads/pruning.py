"""Pruning: masks that keep the larger weights of each matrix, or removal of whole units.

Masks are part of the training state and are applied in the forward pass, so the pruned weights are zero and get no
gradient. They stay in memory, though, and so do their optimizer state and the masks (`techniques/pruning.py`).

Structural pruning removes the attention heads and hidden units with the smallest weights. The result is a smaller dense
network, so it saves memory everywhere, unlike masks. A unit's importance is the norm of all weights that lead to it and
from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

LayerParams = Mapping[str, jax.Array]
Pruned = dict[str, jax.Array]
_PRUNED = ("kernel", "weight")


def magnitude_masks(params: Any, fraction: float) -> Any:
    """Return the masks, bool, in the tree of `params`, with None for leaves that are not pruned.

    Args:
        params: parameters. The matrices called `kernel` or `weight` are pruned, or all matrices if there are no such
            names.
            Each matrix of stacked layers is pruned separately.
        fraction: the part of each matrix's weights, the smallest ones, that becomes False.
    """
    matrices = [(keys, value) for keys, value in jax.tree_util.tree_leaves_with_path(params) if value.ndim >= 2]
    is_named = any(_name(keys) in _PRUNED for keys, _ in matrices)

    def mask(keys: Any, value: jax.Array) -> jax.Array | None:
        if value.ndim < 2 or (is_named and _name(keys) not in _PRUNED):
            return None
        sizes = jnp.abs(value.astype(jnp.float32))
        return sizes > jnp.quantile(sizes, fraction, axis=(-2, -1), keepdims=True)

    return jax.tree_util.tree_map_with_path(mask, params)


def apply_masks(params: Any, masks: Any) -> Any:
    """Return the parameters, set to zero wherever a mask is False."""
    return jax.tree.map(
        lambda mask, value: value if mask is None else jnp.where(mask, value, jnp.zeros((), value.dtype)),
        masks,
        params,
        is_leaf=lambda mask: mask is None,
    )


def kept(num_units: int, fraction: float) -> int:
    """Return the number of units that are left after pruning that fraction: at least one."""
    return max(1, num_units - math.floor(num_units * fraction))


def prune_hidden_units(
    down: LayerParams, num_kept: int, **ups: LayerParams
) -> tuple[dict[str, Pruned], Pruned, jax.Array]:
    """Return projections with only the most important units between them, and the indices of these units.

    Args:
        down: the projection from the units.
        num_kept: number of units that stay.
        ups: the projections to the units, by name; with biases or without.
    """
    into = [energy(up["kernel"], axes=(0,)) for up in ups.values()]
    keep = most_important(sum(into, energy(down["kernel"], axes=(1,))), num_kept)
    pruned = {
        name: {leaf: values[..., keep] for leaf, values in up.items()}  # for the kernel, its columns
        for name, up in ups.items()
    }
    return pruned, {**down, "kernel": down["kernel"][keep]}, keep


def energy(weights: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Return the squared norm over some axes, in float32."""
    return jnp.sum(jnp.square(weights.astype(jnp.float32)), axis=axes)


def most_important(importance: jax.Array, num_kept: int) -> jax.Array:
    """Return the indices of the largest values, in ascending order."""
    return jnp.sort(jnp.argsort(importance, descending=True)[:num_kept])


def _name(keys: Any) -> str:
    """Return the last key of a path: a mapping's key, or a field's name."""
    last = keys[-1] if keys else None
    return str(getattr(last, "key", getattr(last, "name", "")))
