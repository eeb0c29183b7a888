"""Structured pruning of a Transformer: heads and hidden units are removed, and the residual stream keeps its width."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.pruning import LayerParams, Pruned, energy, kept, most_important, prune_hidden_units
from memprof.workloads.scopes import ATTENTION, EXPERTS, LAYERS, MLP


def pruned_config(config: TransformerConfig, fraction: float) -> TransformerConfig:
    """Return the configuration without that fraction of the heads and of the MLP blocks' hidden units."""
    if fraction == 0:
        return config
    assert config.kv_heads == config.num_heads, "the heads of a group share keys and values"
    return dataclasses.replace(
        config,
        num_heads=kept(config.num_heads, fraction),
        num_kv_heads=None,
        head_size=config.head_width,
        mlp_size=kept(config.mlp_width, fraction),
    )


def prune_layers(params: Mapping[str, Any], config: TransformerConfig, smaller: TransformerConfig) -> dict[str, Any]:
    """Return a Transformer's parameters without the units that `smaller` lacks, layer by layer.

    Args:
        params: parameters of a Transformer of `config`, with its layers stacked or not.
    """

    def prune(layer: Mapping[str, Any]) -> dict[str, Any]:
        attention, mlp = layer[ATTENTION], layer[MLP]
        qkv, out = prune_heads(attention["qkv"], attention["out"], config, smaller.num_heads)
        return {
            ATTENTION: {**attention, "qkv": qkv, "out": out},
            MLP: {**mlp, EXPERTS: jax.vmap(prune_mlp)(mlp[EXPERTS])} if config.num_experts else prune_mlp(mlp),
        }

    def prune_mlp(mlp: Mapping[str, Any]) -> dict[str, Any]:
        ups = {name: mlp[name] for name in ("up", "gate") if name in mlp}
        pruned, down, _ = prune_hidden_units(mlp["down"], smaller.mlp_width, **ups)
        return {**mlp, **pruned, "down": down}

    pruned = dict(params)
    for name, layer in params.items():
        if name == LAYERS:
            pruned[name] = jax.vmap(prune)(layer)
        elif name.startswith(f"{LAYERS}_"):
            pruned[name] = prune(layer)
    return pruned


def prune_heads(qkv: LayerParams, out: LayerParams, config: TransformerConfig, num_kept: int) -> tuple[Pruned, Pruned]:
    """Return both projections of an attention with only the most important heads, in their old order."""
    heads = (config.num_heads, config.head_width)
    kernel = qkv["kernel"].reshape(-1, 3, *heads)
    out_kernel = out["kernel"].reshape(*heads, -1)
    keep = most_important(energy(kernel, axes=(0, 1, 3)) + energy(out_kernel, axes=(1, 2)), num_kept)
    hidden_size = kernel.shape[0]
    pruned = {"kernel": kernel[:, :, keep].reshape(hidden_size, -1)}
    if "bias" in qkv:
        pruned["bias"] = qkv["bias"].reshape(3, *heads)[:, keep].reshape(-1)
    return pruned, {**out, "kernel": out_kernel[keep].reshape(-1, hidden_size)}
