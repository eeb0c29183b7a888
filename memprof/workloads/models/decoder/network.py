"""The forward pass of a decoder, as pure functions of weights, cache and tokens.

Every block computes queries, keys and values of the new tokens, writes keys and values into the cache at the tokens'
positions, and computes attention. A prefill attends to the new keys; decode and chunks of a prefill attend to the
cache. Softmax, norms and logits are in float32, and the rest in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.layers import compute_dtype, rotated
from memprof.workloads.models.decoder.config import DecoderConfig
from memprof.workloads.models.decoder.params import SCALE_DTYPE
from memprof.workloads.quantisation import FORMATS, narrowed, product
from memprof.workloads.scopes import ATTENTION, LAYERS, MLP
from memprof.workloads.sharding import BATCH, WHOLE, WIDTH, divided
from memprof.workloads.train_config import TrainConfig

_EPSILON = 1e-6
_INT8_MAX = 127
_ACTIVATIONS = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}


class _Places(NamedTuple):
    """The positions of tokens, and the pages of their sequences in a paged cache."""

    positions: jax.Array
    pages: jax.Array | None


class Decoder:
    """The network of a configuration."""

    def __init__(self, config: DecoderConfig, train_config: TrainConfig) -> None:
        self._config, self._train_config = config, train_config
        self._dtype = compute_dtype(train_config)

    def __call__(
        self, params: Mapping[str, Any], cache: Any, tokens: jax.Array, positions: jax.Array, pages: jax.Array | None
    ) -> tuple[jax.Array, Any]:
        """Return logits in float32 and the new cache.

        Args:
            params: parameters in the tree of `abstract_params`.
            cache: cache in the tree of `abstract_cache`.
            tokens: int32 `(batch, tokens)`; in the phase `decode` one token of each sequence.
            positions: int32, the positions of the tokens in their sequences, of the same shape.
            pages: int32 `(batch, pages of a sequence)`, the numbers of the pages of each sequence in a paged cache;
                None for a cache without pages.

        Returns:
            Logits of the last token, `(batch, vocab_size)`; of all tokens if the configuration says so.
        """
        table = params["token_embedding"]["embedding"]
        hidden = jnp.take(table, tokens, axis=0).astype(self._dtype)
        if self._config.positions == "learned":
            hidden += jnp.take(params["position_embedding"]["embedding"], positions, axis=0).astype(self._dtype)
        hidden = divided(hidden, self._train_config, BATCH, WHOLE)
        hidden, cache = self._through_layers(hidden, params["layers"], cache, _Places(positions, pages))
        if not self._config.all_logits:
            hidden = hidden[:, -1]
        with jax.named_scope("final_norm"):
            hidden = self._norm(params["final_norm"], hidden)
        with jax.named_scope("head"):
            if self._config.tied_embeddings:
                return jnp.einsum("...h,vh->...v", hidden, table.astype(self._dtype)).astype(jnp.float32), cache
            return self._dense(params["head"], hidden).astype(jnp.float32), cache

    def _through_layers(self, hidden: jax.Array, layers: Any, cache: Any, places: _Places) -> tuple[jax.Array, Any]:
        if not self._train_config.cache_list:
            with jax.named_scope(LAYERS):
                hidden, cache = jax.lax.scan(
                    lambda hidden, layer: self._block(hidden, layer[0], layer[1], places), hidden, (layers, cache)
                )
            return hidden, cache
        written = []
        for number, (layer, layer_cache) in enumerate(zip(layers, cache, strict=True)):
            with jax.named_scope(f"{LAYERS}_{number}"):
                hidden, layer_cache = self._block(hidden, layer, layer_cache, places)
            written.append(layer_cache)
        return hidden, written

    def _block(
        self, hidden: jax.Array, params: Mapping[str, Any], cache: Any, places: _Places
    ) -> tuple[jax.Array, Any]:
        with jax.named_scope(ATTENTION):
            attended, cache = self._attention(hidden, params[ATTENTION], cache, places)
        hidden = divided(hidden + attended, self._train_config, BATCH, WHOLE)
        with jax.named_scope(MLP):
            hidden = hidden + self._mlp(hidden, params[MLP])
        return divided(hidden, self._train_config, BATCH, WHOLE), cache

    def _attention(
        self, hidden: jax.Array, params: Mapping[str, Any], cache: Any, places: _Places
    ) -> tuple[jax.Array, Any]:
        config, positions = self._config, places.positions
        hidden = self._norm(params["norm"], hidden)
        query, key, value = (
            self._dense(params[name], hidden).reshape(*hidden.shape[:2], -1, config.head_width)
            for name in ("query", "key", "value")
        )
        if config.positions == "rotary":
            query, key = rotated(query, positions), rotated(key, positions)
        cache = {"k": self._written(cache["k"], key, places), "v": self._written(cache["v"], value, places)}
        if config.phase == "prefill" and config.chunk(self._train_config) is None:
            allowed = self._is_visible(positions[:, :, None] - positions[:, None, :])
        else:
            key, value = (self._read(self._of_sequences(cache[name], places.pages)) for name in ("k", "v"))
            # In a window, slot i holds the latest token whose position is i modulo the window.
            held, length = jnp.arange(key.shape[1]), key.shape[1]
            allowed = self._is_visible((positions[:, :, None] - held) % length) & (held <= positions[:, :, None])
        attended = attend(query, key, value, allowed).reshape(*hidden.shape[:2], -1)
        return self._dense(params["out"], attended), cache

    def _is_visible(self, distance: jax.Array) -> jax.Array:
        """Return whether a token attends to another token at that distance before it."""
        window = self._train_config.cache_window
        return (distance >= 0) & (distance < window) if window else distance >= 0

    def _written(self, cache: Any, new: jax.Array, places: _Places) -> Any:
        """Return the cache with new keys or values at their positions; a window keeps only the last ones."""
        length = self._config.cache_len(self._train_config)
        new, positions = new[:, -length:], places.positions[:, -length:] % length
        rows = jnp.arange(new.shape[0])[:, None]
        if places.pages is not None:
            rows = jnp.take_along_axis(places.pages, positions // self._config.page_size, axis=1)
            positions = positions % self._config.page_size

        def write(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[rows, positions].set(new.astype(old.dtype))

        return jax.tree.map(write, cache, self._as_held(new))

    def _as_held(self, new: jax.Array) -> Any:
        """Return keys or values in the cache's format: unchanged, as 8-bit floats, or as 8-bit integers with scales."""
        if self._train_config.cache_dtype == "float8":
            return narrowed(new, FORMATS["float8"])
        if self._train_config.cache_dtype != "int8":
            return new
        scale = jnp.maximum(jnp.max(jnp.abs(new.astype(SCALE_DTYPE)), axis=-1), _EPSILON) / _INT8_MAX
        return {"int8": jnp.round(new / scale[..., None]), "scale": scale}

    def _of_sequences(self, cache: Any, pages: jax.Array | None) -> Any:
        """Return the keys or values of each sequence, `(batch, tokens, ...)`, gathered from their pages."""
        if pages is None:
            return cache
        length = self._config.cache_len(self._train_config)
        return jax.tree.map(lambda leaf: leaf[pages].reshape(len(pages), -1, *leaf.shape[2:])[:, :length], cache)

    def _read(self, cache: Any) -> jax.Array:
        if self._train_config.cache_dtype != "int8":
            return jnp.asarray(cache, self._dtype)
        return (cache["int8"].astype(SCALE_DTYPE) * cache["scale"][..., None]).astype(self._dtype)

    def _mlp(self, hidden: jax.Array, params: Mapping[str, Any]) -> jax.Array:
        activation = _ACTIVATIONS[self._config.activation]
        hidden = self._norm(params["norm"], hidden)
        up = self._dense(params["up"], hidden)
        up = activation(self._dense(params["gate"], hidden)) * up if self._config.gated_mlp else activation(up)
        return self._dense(params["down"], divided(up, self._train_config, BATCH, WHOLE, WIDTH))

    def _dense(self, params: Mapping[str, Any], inputs: jax.Array) -> jax.Array:
        result = product(inputs, params["kernel"], self._dtype)
        return result + params["bias"].astype(self._dtype) if "bias" in params else result

    def _norm(self, params: Mapping[str, Any], inputs: jax.Array) -> jax.Array:
        wide = inputs.astype(jnp.float32)
        if self._config.norm == "layer":
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + _EPSILON)
        wide = wide * params["scale"].astype(jnp.float32)
        return (wide + params["bias"].astype(jnp.float32) if "bias" in params else wide).astype(self._dtype)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, allowed: jax.Array) -> jax.Array:
    """Return the attended values, of the shape of `query`. Groups of query heads share a key/value head.

    Args:
        query: `(batch, queries, heads, head_size)`.
        key, value: `(batch, keys, kv_heads, head_size)`.
        allowed: bool `(batch, queries, keys)`.
    """
    batch, num_queries, num_heads, head_size = query.shape
    grouped = query.reshape(batch, num_queries, key.shape[2], num_heads // key.shape[2], head_size)
    scores = jnp.einsum("bqngd,bknd->bngqk", grouped * head_size**-0.5, key).astype(jnp.float32)
    scores = jnp.where(allowed[:, None, None], scores, np.finfo(np.float32).min)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bngqk,bknd->bqngd", probabilities, value).reshape(query.shape)
