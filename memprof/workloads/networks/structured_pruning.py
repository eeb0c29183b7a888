"""Structured pruning: whole attention heads and hidden units go, those with the smallest weights first.

What is left is a smaller dense network, which is why it saves memory everywhere, unlike masks. A unit's importance is
the norm of all weights that lead to it and from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memprof.workloads.models.transformer import TransformerConfig

LayerParams = Mapping[str, jax.Array]
Pruned = dict[str, jax.Array]


def kept(num_units: int, fraction: float) -> int:
    """Returns how many of the units are left when that fraction is pruned: at least one."""
    return max(1, num_units - math.floor(num_units * fraction))


def pruned_config(config: TransformerConfig, fraction: float) -> TransformerConfig:
    """Returns the configuration with that fraction of the heads and of the MLP blocks' hidden units gone."""
    if fraction == 0:
        return config
    return dataclasses.replace(
        config,
        num_heads=kept(config.num_heads, fraction),
        head_size=config.head_width,
        mlp_size=kept(config.mlp_width, fraction),
    )


def prune_layers(params: Mapping[str, Any], config: TransformerConfig, smaller: TransformerConfig) -> dict[str, Any]:
    """Returns a Transformer's parameters with what `smaller` does not have cut out, layer by layer.

    Args:
        params: those of a Transformer of `config`, its layers stacked or not.
    """

    def prune(layer: Mapping[str, Any]) -> dict[str, Any]:
        attention, mlp = layer["attention"], layer["mlp"]
        qkv, out = prune_heads(attention["qkv"], attention["out"], config, smaller.num_heads)
        up, down, _ = prune_hidden_units(mlp["up"], mlp["down"], smaller.mlp_width)
        return {"attention": {**attention, "qkv": qkv, "out": out}, "mlp": {**mlp, "up": up, "down": down}}

    pruned = dict(params)
    for name, layer in params.items():
        if name == "layers":
            pruned[name] = jax.vmap(prune)(layer)
        elif name.startswith("layers_"):
            pruned[name] = prune(layer)
    return pruned


def prune_heads(qkv: LayerParams, out: LayerParams, config: TransformerConfig, num_kept: int) -> tuple[Pruned, Pruned]:
    """Returns both projections of an attention with the most important heads alone, in their old order."""
    heads = (config.num_heads, config.head_width)
    kernel, bias = qkv["kernel"].reshape(-1, 3, *heads), qkv["bias"].reshape(3, *heads)
    out_kernel = out["kernel"].reshape(*heads, -1)
    keep = _most_important(_energy(kernel, axes=(0, 1, 3)) + _energy(out_kernel, axes=(1, 2)), num_kept)
    hidden_size = kernel.shape[0]
    return (
        {"kernel": kernel[:, :, keep].reshape(hidden_size, -1), "bias": bias[:, keep].reshape(-1)},
        {**out, "kernel": out_kernel[keep].reshape(-1, hidden_size)},
    )


def prune_hidden_units(up: LayerParams, down: LayerParams, num_kept: int) -> tuple[Pruned, Pruned, jax.Array]:
    """Returns two projections with the most important units between them alone, and which units these are."""
    keep = _most_important(_energy(up["kernel"], axes=(0,)) + _energy(down["kernel"], axes=(1,)), num_kept)
    return (
        {"kernel": up["kernel"][:, keep], "bias": up["bias"][keep]},
        {**down, "kernel": down["kernel"][keep]},
        keep,
    )


def _energy(weights: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sum(jnp.square(weights.astype(jnp.float32)), axis=axes)


def _most_important(importance: jax.Array, num_kept: int) -> jax.Array:
    return jnp.sort(jnp.argsort(importance, descending=True)[:num_kept])
