"""The weights and the cache of a decoder, as shapes and dtypes.

Paths read `token_embedding/embedding`, `layers/attention/query/kernel`, `layers/mlp/up/kernel`, `final_norm/scale`. The
layers are stacked, and so is the cache: `{"k": (layers, batch, tokens, kv heads, head size), "v": ...}`. If the cache
is a list (`kv-list`), both are lists with one entry for each layer. In a paged cache, pages and their tokens replace
sequences and their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memprof.workloads.layers import compute_dtype, param_dtype
from memprof.workloads.models.decoder.config import DecoderConfig
from memprof.workloads.quantisation import FORMATS, KERNEL, SCALE, with_quantised_kernels
from memprof.workloads.train_config import TrainConfig

SCALE_DTYPE = jnp.float32
# The axis that tensor parallelism divides: columns of projections into attention and MLP, rows of those out of them,
# and the vocabulary.
_TENSOR_AXES = {
    "token_embedding/embedding": -2,
    "head/kernel": -1,
    "head/bias": -1,
    **{f"attention/{name}/{leaf}": -1 for name in ("query", "key", "value") for leaf in ("kernel", "bias")},
    "attention/out/kernel": -2,
    **{f"mlp/{name}/{leaf}": -1 for name in ("gate", "up") for leaf in ("kernel", "bias")},
    "mlp/down/kernel": -2,
}
TENSOR_AXES = _TENSOR_AXES | {
    f"{path}/{leaf}": axis
    for path, axis in _TENSOR_AXES.items()
    if path.endswith(KERNEL)
    for leaf in (SCALE, *(form.dtype for form in FORMATS.values()))
}


def abstract_params(config: DecoderConfig, train_config: TrainConfig) -> Any:
    """Return the weights, with quantised kernels if the configuration says so."""
    return jax.eval_shape(
        lambda params: with_quantised_kernels(params, train_config.weight_dtype),
        unquantised_params(config, train_config),
    )


def unquantised_params(config: DecoderConfig, train_config: TrainConfig) -> dict[str, Any]:
    """Return the weights before any quantisation."""
    dtype = param_dtype(train_config)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def norm() -> dict[str, Any]:
        scale = {"scale": array(config.hidden_size)}
        return scale if config.norm == "rms" else {**scale, "bias": array(config.hidden_size)}

    def dense(num_inputs: int, num_outputs: int) -> dict[str, Any]:
        kernel = {"kernel": array(num_inputs, num_outputs)}
        return {**kernel, "bias": array(num_outputs)} if config.biases else kernel

    width, heads, kv_heads = config.hidden_size, config.num_heads, config.kv_heads
    layer = {
        "attention": {
            "norm": norm(),
            "query": dense(width, heads * config.head_width),
            "key": dense(width, kv_heads * config.head_width),
            "value": dense(width, kv_heads * config.head_width),
            "out": dense(heads * config.head_width, width),
        },
        "mlp": {
            "norm": norm(),
            **({"gate": dense(width, config.mlp_width)} if config.gated_mlp else {}),
            "up": dense(width, config.mlp_width),
            "down": dense(config.mlp_width, width),
        },
    }
    params: dict[str, Any] = {
        "token_embedding": {"embedding": array(config.vocab_size, width)},
        "layers": _layers(layer, config, train_config),
        "final_norm": norm(),
    }
    if config.positions == "learned":
        params["position_embedding"] = {"embedding": array(config.context_len, width)}
    if not config.tied_embeddings:
        params["head"] = dense(width, config.vocab_size)
    return params


def abstract_cache(config: DecoderConfig, train_config: TrainConfig) -> Any:
    """Return the cache: keys and values of `context_len` tokens of each sequence, or of the tokens that a window holds.

    8-bit integers have one scale for each token and head. A paged cache has the keys and values of its pool.
    """
    tokens = (config.batch_size, config.cache_len(train_config))
    if train_config.cache_paged:
        tokens = (config.pool_pages(train_config), config.page_size)
    by_head = (*tokens, config.kv_heads)
    if train_config.cache_dtype == "int8":
        one = {
            "int8": jax.ShapeDtypeStruct((*by_head, config.head_width), jnp.int8),
            "scale": jax.ShapeDtypeStruct(by_head, SCALE_DTYPE),
        }
        layer: dict[str, Any] = {"k": one, "v": one}
    else:
        is_float8 = train_config.cache_dtype == "float8"
        dtype = jnp.dtype(FORMATS["float8"].dtype) if is_float8 else compute_dtype(train_config)
        array = jax.ShapeDtypeStruct((*by_head, config.head_width), dtype)
        layer = {"k": array, "v": array}
    return _layers(layer, config, train_config)


def _layers(layer: Mapping[str, Any], config: DecoderConfig, train_config: TrainConfig) -> Any:
    """Return all layers, each with the shapes of `layer`: in a list, or stacked."""
    if train_config.cache_list:
        return [layer] * config.num_layers
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((config.num_layers, *leaf.shape), leaf.dtype), layer)
