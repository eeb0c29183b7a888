"""An inference server: two prefill buckets and a decode step that share weights and a cache of pages.

memprof serve-plan examples/engine.py:engine_spec --target h100-80gb
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import memprof

LAYERS, WIDTH, VOCAB, PAGE_SIZE = 4, 256, 4096, 16


def step(params: Any, cache: Any, pages: jax.Array, positions: jax.Array, tokens: jax.Array) -> Any:
    """Reads the tokens at these positions of each sequence; returns the logits of the last one, and the cache.

    Args:
        cache: for each layer, keys and values by page: `(2, pages, page_size, width)`.
        pages: of each sequence in their order, int32 `(batch, pages_of_a_sequence)`.
    """
    hidden, written = params["embed"][tokens], []
    page = jnp.take_along_axis(pages, positions // PAGE_SIZE, axis=1)
    for layer, layer_cache in zip(params["layers"], cache, strict=True):
        query, key, value = jnp.split(hidden @ layer["qkv"], 3, axis=-1)
        layer_cache = layer_cache.at[:, page, positions % PAGE_SIZE].set(jnp.stack([key, value]))
        keys, values = layer_cache[:, pages].reshape(2, len(tokens), -1, WIDTH)
        scores = jnp.einsum("bqd,bkd->bqk", query, keys, preferred_element_type=jnp.float32) * WIDTH**-0.5
        is_earlier = jnp.arange(keys.shape[1]) <= positions[..., None]
        probabilities = jax.nn.softmax(jnp.where(is_earlier, scores, -1e9))
        hidden += jnp.einsum("bqk,bkd->bqd", probabilities.astype(values.dtype), values) @ layer["out"]
        written.append(layer_cache)
    return hidden[:, -1] @ params["embed"].T, written


def engine_spec(num_pages: int = 1024, batch_size: int = 32, context_len: int = 512) -> memprof.ServingSpec:
    """The programs of the server, on shapes alone."""
    array, dtype = jax.ShapeDtypeStruct, jnp.bfloat16
    layer = {"qkv": array((WIDTH, 3 * WIDTH), dtype), "out": array((WIDTH, WIDTH), dtype)}
    params = {"embed": array((VOCAB, WIDTH), dtype), "layers": [layer] * LAYERS}
    cache = [array((2, num_pages, PAGE_SIZE, WIDTH), dtype)] * LAYERS

    def program(num_sequences: int, length: int) -> memprof.StepSpec:
        tokens = array((num_sequences, length), jnp.int32)
        pages = array((num_sequences, context_len // PAGE_SIZE), jnp.int32)
        return memprof.StepSpec(step, (params, cache, pages, tokens, tokens), donate_argnums=(1,))

    return memprof.ServingSpec(
        {"prefill-128": program(4, 128), "prefill-512": program(4, 512), "decode": program(batch_size, 1)},
        cache_tokens=num_pages * PAGE_SIZE,
    )


def decode_step() -> memprof.StepSpec:
    """The decode step alone: `memprof run examples/engine.py:decode_step`."""
    return engine_spec().programs["decode"]
