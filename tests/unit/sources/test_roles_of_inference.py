"""The roles of the arguments of an inference step, where nobody says so: weights, and caches of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx

from memprof.sources.jax.tracing.step import StepSpec
from tests.unit.sources.test_roles import roles

P, B, KV, S = "params", "batch", "kv_cache", "other_state"
BATCH, LENGTH, HEADS, SIZE, WIDTH, VOCAB, LAYERS = 2, 12, 2, 8, 16, 32, 3
Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, str]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


class Cache(NamedTuple):
    k: Any
    v: Any


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


TOKENS = array(BATCH, dtype=jnp.int32)
LENGTHS = array(BATCH, dtype=jnp.int32)
LAYER = {
    "norm": array(WIDTH),
    "qkv": array(WIDTH, 3 * WIDTH),
    "bias": array(3 * WIDTH),
    "out": array(WIDTH, WIDTH),
    "up": array(WIDTH, 64),
    "down": array(64, WIDTH),
}
WEIGHTS = {
    "embed": array(VOCAB, WIDTH),
    "layers": [LAYER] * LAYERS,
    "head": array(WIDTH, VOCAB),
}
STACKED = {**WEIGHTS, "layers": {name: array(LAYERS, *leaf.shape) for name, leaf in LAYER.items()}}
CACHE = array(BATCH, LENGTH, HEADS, SIZE)
STACKED_CACHE = array(LAYERS, *CACHE.shape)
ROWS = jnp.arange(BATCH)


def qkv(layer: Any, hidden: Any, position: Any) -> Any:
    """Queries, keys and values of one token of each sequence, with rotary positions."""
    hidden = hidden * jax.lax.rsqrt(jnp.mean(hidden**2, -1, keepdims=True) + 1e-6) * layer["norm"]
    joined = hidden @ layer["qkv"] + layer["bias"]
    query, key, value = (part.reshape(BATCH, HEADS, SIZE) for part in jnp.split(joined, 3, -1))
    return rotated(query, position), rotated(key, position), value


def rotated(heads: Any, position: Any) -> Any:
    angles = position[:, None, None] * 1e4 ** (-jnp.arange(SIZE // 2) / SIZE)
    one, other = jnp.split(heads, 2, -1)
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([one * cosine - other * sine, other * cosine + one * sine], -1)


def attend(query: Any, keys: Any, values: Any, position: Any) -> Any:
    scores = jnp.einsum("bhd,bthd->bht", query, keys)
    scores = jnp.where((jnp.arange(keys.shape[1]) <= position[:, None])[:, None], scores, -1e9)
    return jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), values).reshape(BATCH, WIDTH)


def add(layer: Any, hidden: Any, attended: Any) -> Any:
    hidden = hidden + attended @ layer["out"]
    return hidden + jax.nn.silu(hidden @ layer["up"]) @ layer["down"]


def next_tokens(weights: Any, hidden: Any) -> Any:
    return jnp.argmax(hidden @ weights["head"], -1)


@case
def linen_decode() -> Case:
    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            hidden = nn.Embed(VOCAB, WIDTH)(tokens)
            hidden += nn.MultiHeadDotProductAttention(num_heads=HEADS, decode=True)(nn.LayerNorm()(hidden))
            return nn.Dense(VOCAB)(nn.gelu(nn.Dense(64)(hidden)))

    module = Decoder()
    variables = jax.eval_shape(module.init, jax.random.key(0), array(BATCH, LENGTH, dtype=jnp.int32))

    def step(weights: Any, cache: Any, tokens: Any) -> Any:
        logits, changed = module.apply({"params": weights, "cache": cache}, tokens, mutable=["cache"])
        return logits[:, -1].argmax(-1), changed["cache"]

    attention = "cache['MultiHeadDotProductAttention_0']"
    return (
        step,
        (variables["params"], variables["cache"], array(BATCH, 1, dtype=jnp.int32)),
        {
            "weights": P,
            f"{attention}['cached_key']": KV,
            f"{attention}['cached_value']": KV,
            f"{attention}['cache_index']": S,
            "tokens": B,
        },
    )


@case
def nnx_decode() -> Case:
    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=True, rngs=rngs)
            self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    model = Decoder(nnx.Rngs(0))
    model.attention.init_cache((BATCH, LENGTH, WIDTH))

    @nnx.jit
    def step(model: Any, tokens: Any) -> Any:
        hidden = model.embed(tokens)
        return model.head(hidden + model.attention(hidden))[:, -1].argmax(-1)

    return (
        step,
        (model, jnp.zeros((BATCH, 1), jnp.int32)),
        {
            "model.embed": P,
            "model.attention.query": P,
            "model.attention.cached_key": KV,
            "model.attention.cached_value": KV,
            "model.attention.cache_index": S,
            "model.head": P,
            "tokens": B,
        },
    )


@case
def hugging_face_flax() -> Case:
    """The cache of `FlaxGPT2Attention`: filled at `cache_index`, its mask combined with that of the padding."""

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, hidden: Any, attention_mask: Any) -> Any:
            joined = nn.Dense(3 * WIDTH)(hidden)
            query, key, value = (each.reshape(BATCH, -1, HEADS, SIZE) for each in jnp.split(joined, 3, -1))
            cached_key = self.variable("cache", "cached_key", jnp.zeros, (BATCH, LENGTH, HEADS, SIZE))
            cached_value = self.variable("cache", "cached_value", jnp.zeros, (BATCH, LENGTH, HEADS, SIZE))
            index = self.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
            place = (0, index.value, 0, 0)
            cached_key.value = jax.lax.dynamic_update_slice(cached_key.value, key, place)
            cached_value.value = jax.lax.dynamic_update_slice(cached_value.value, value, place)
            mask = (jnp.arange(LENGTH) <= index.value) & (attention_mask > 0)
            index.value += 1
            bias = jnp.where(mask, 0.0, -1e9)[:, None, None]
            weights = nn.dot_product_attention_weights(query, cached_key.value, bias=bias)
            attended = jnp.einsum("bhqk,bkhd->bqhd", weights, cached_value.value)
            return nn.Dense(WIDTH)(attended.reshape(hidden.shape))

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
            embed = nn.Embed(VOCAB, WIDTH)
            hidden = embed(input_ids)
            for _ in range(2):
                hidden += Attention()(nn.LayerNorm()(hidden), attention_mask)
            return embed.attend(hidden)

    module = Decoder()
    inputs = (array(BATCH, 1, dtype=jnp.int32), array(BATCH, LENGTH, dtype=jnp.int32))
    variables = jax.eval_shape(module.init, jax.random.key(0), *inputs)

    def step(params: Any, past_key_values: Any, input_ids: Any, attention_mask: Any) -> Any:
        variables = {"params": params, "cache": past_key_values}
        logits, changed = module.apply(variables, input_ids, attention_mask, mutable=["cache"])
        return logits, changed["cache"]

    cache = [f"past_key_values['Attention_{n}']" for n in range(2)]
    return (
        step,
        (variables["params"], variables["cache"], *inputs),
        {
            "params": P,
            **{f"{each}['cached_{part}']": KV for each in cache for part in ("key", "value")},
            **{f"{each}['cache_index']": S for each in cache},
            "input_ids": B,
            "attention_mask": B,
        },
    )


@case
def a_loop_over_a_stacked_named_tuple() -> Case:
    def step(weights: Any, cache: Any, tokens: Any, position: Any) -> Any:
        def through(hidden: Any, layer_and_cache: Any) -> Any:
            layer, keys, values = layer_and_cache
            query, key, value = qkv(layer, hidden, position)
            keys, values = keys.at[ROWS, position].set(key), values.at[ROWS, position].set(value)
            return add(layer, hidden, attend(query, keys, values, position)), (keys, values)

        hidden, (keys, values) = jax.lax.scan(through, weights["embed"][tokens], (weights["layers"], *cache))
        return next_tokens(weights, hidden), Cache(keys, values), position + 1

    args = (STACKED, Cache(STACKED_CACHE, STACKED_CACHE), TOKENS, LENGTHS)
    return step, args, {"weights": P, "cache": KV, "tokens": B}


@case
def a_loop_that_carries_the_whole_cache() -> Case:
    def step(weights: Any, cache: Any, tokens: Any, position: Any) -> Any:
        def through(number: Any, carried: Any) -> Any:
            hidden, cache = carried
            layer = jax.tree.map(lambda leaf: leaf[number], weights["layers"])
            query, key, value = qkv(layer, hidden, position)
            cache = {
                "k": cache["k"].at[number, ROWS, position].set(key),
                "v": cache["v"].at[number, ROWS, position].set(value),
            }
            return add(layer, hidden, attend(query, cache["k"][number], cache["v"][number], position)), cache

        hidden, cache = jax.lax.fori_loop(0, LAYERS, through, (weights["embed"][tokens], cache))
        return next_tokens(weights, hidden), cache

    args = (STACKED, {"k": STACKED_CACHE, "v": STACKED_CACHE}, TOKENS, LENGTHS)
    return step, args, {"weights": P, "cache": KV, "tokens": B, "position": B}


def unrolled(write: Callable[[Any, Any, Any], Any], *, read: Callable[[Any], Any] = lambda cache: cache) -> Any:
    """A decode step with a list of caches, by how one is written and read."""

    def step(weights: Any, caches: Any, tokens: Any, position: Any) -> Any:
        hidden, written = weights["embed"][tokens], []
        for layer, cache in zip(weights["layers"], caches, strict=True):
            query, key, value = qkv(layer, hidden, position)
            written.append({"k": write(cache["k"], key, position), "v": write(cache["v"], value, position)})
            attended = attend(query, read(written[-1]["k"]), read(written[-1]["v"]), position)
            hidden = add(layer, hidden, attended)
        return next_tokens(weights, hidden), written

    return step


def in_list(cache: Any = CACHE) -> tuple[Any, ...]:
    return WEIGHTS, [{"k": cache, "v": cache}] * LAYERS, TOKENS, LENGTHS


@case
def a_list_written_with_a_one_hot_mask() -> Case:
    def write(cache: Any, new: Any, position: Any) -> Any:
        is_here = (jnp.arange(LENGTH) == position[:, None])[:, :, None, None]
        return jnp.where(is_here, new[:, None], cache)

    return unrolled(write), in_list(), {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def a_window_that_moves_on() -> Case:
    def write(cache: Any, new: Any, position: Any) -> Any:
        return jnp.concatenate([cache[:, 1:], new[:, None]], axis=1)

    return unrolled(write), in_list(), {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def integers_with_scales() -> Case:
    def write(cache: Any, new: Any, position: Any) -> Any:
        scale = jnp.max(jnp.abs(new), -1, keepdims=True) / 127
        return {
            "int8": cache["int8"].at[ROWS, position].set(jnp.round(new / scale).astype(jnp.int8)),
            "scale": cache["scale"].at[ROWS, position].set(scale),
        }

    cache = {"int8": array(*CACHE.shape, dtype=jnp.int8), "scale": array(BATCH, LENGTH, HEADS, 1)}
    step = unrolled(write, read=lambda cache: cache["int8"].astype(jnp.float32) * cache["scale"])
    return step, in_list(cache), {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def integers_whose_scales_multiply_scores_and_probabilities() -> Case:
    """No dequantised key or value exists: the scale of a token is a factor of its score, and of its probability."""

    def stored(cache: Any, new: Any, position: Any) -> Any:
        scale = jnp.max(jnp.abs(new), -1) / 127
        return {
            "int8": cache["int8"].at[ROWS, position].set(jnp.round(new / scale[..., None]).astype(jnp.int8)),
            "scale": cache["scale"].at[ROWS, position].set(scale),
        }

    def step(weights: Any, caches: Any, tokens: Any, position: Any) -> Any:
        hidden, written = weights["embed"][tokens], []
        for layer, cache in zip(weights["layers"], caches, strict=True):
            query, key, value = qkv(layer, hidden, position)
            keys, values = stored(cache["k"], key, position), stored(cache["v"], value, position)
            scores = jnp.einsum("bhd,bthd->bht", query, keys["int8"].astype(query.dtype))
            scores *= keys["scale"].swapaxes(1, 2)
            scores = jnp.where((jnp.arange(LENGTH) <= position[:, None])[:, None], scores, -1e9)
            shares = jax.nn.softmax(scores) * values["scale"].swapaxes(1, 2)
            attended = jnp.einsum("bht,bthd->bhd", shares, values["int8"].astype(query.dtype))
            hidden = add(layer, hidden, attended.reshape(BATCH, WIDTH))
            written.append({"k": keys, "v": values})
        return next_tokens(weights, hidden), written

    cache = {"int8": array(*CACHE.shape, dtype=jnp.int8), "scale": array(BATCH, LENGTH, HEADS)}
    return step, in_list(cache), {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def pages_of_a_pool() -> Case:
    def step(model: Any, pool: Any, table: Any, lengths: Any, tokens: Any) -> Any:
        hidden = model["embed"][tokens]
        page, offset = table[ROWS, lengths // 4], lengths % 4
        for number, layer in enumerate(model["layers"]):
            query, key, value = qkv(layer, hidden, lengths)
            pool = pool.at[number, 0, page, offset].set(key).at[number, 1, page, offset].set(value)
            keys, values = (pool[number, part][table].reshape(BATCH, -1, HEADS, SIZE) for part in (0, 1))
            hidden = add(layer, hidden, attend(query, keys, values, lengths))
        return next_tokens(model, hidden), pool

    args = (WEIGHTS, array(LAYERS, 2, 9, 4, HEADS, SIZE), array(BATCH, 3, dtype=jnp.int32), LENGTHS, TOKENS)
    return step, args, {"model": P, "pool": KV, "table": B, "lengths": B, "tokens": B}


@case
def keys_and_values_in_one_array_taken_apart() -> Case:
    def step(model: Any, pool: Any, table: Any, lengths: Any, tokens: Any) -> Any:
        hidden, written = model["embed"][tokens], []
        page, offset = table[ROWS, lengths // 4], lengths % 4
        for layer, layer_pool in zip(model["layers"], pool, strict=True):
            query, key, value = qkv(layer, hidden, lengths)
            layer_pool = layer_pool.at[:, page, offset].set(jnp.stack([key, value]))
            keys, values = layer_pool[:, table].reshape(2, BATCH, -1, HEADS, SIZE)
            hidden = add(layer, hidden, attend(query, keys, values, lengths))
            written.append(layer_pool)
        return next_tokens(model, hidden), written

    pool = [array(2, 9, 4, HEADS, SIZE)] * LAYERS
    args = (WEIGHTS, pool, array(BATCH, 3, dtype=jnp.int32), LENGTHS, TOKENS)
    return step, args, {"model": P, "pool": KV, "table": B, "lengths": B, "tokens": B}


@case
def a_prefill_that_attends_to_its_own_keys() -> Case:
    def step(weights: Any, cache: Any, tokens: Any) -> Any:
        hidden = weights["embed"][tokens]
        query, key, value = jnp.split(hidden @ weights["qkv"], 3, -1)
        scores = jnp.einsum("bqd,bkd->bqk", query, key)
        scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), scores, -1e9)
        attended = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value)
        keys, values = (
            jax.lax.dynamic_update_slice(old, new, (0, 0, 0)) for old, new in zip(cache, (key, value), strict=True)
        )
        return (hidden + attended)[:, -1] @ weights["head"], Cache(keys, values)

    weights = {"embed": array(VOCAB, WIDTH), "qkv": array(WIDTH, 3 * WIDTH), "head": array(WIDTH, VOCAB)}
    cache = array(BATCH, LENGTH, WIDTH)
    args = (weights, Cache(cache, cache), array(BATCH, 4, dtype=jnp.int32))
    return step, args, {"weights": P, "cache": KV, "tokens": B}


@case
def compressed_keys_and_values() -> Case:
    """As in DeepSeek-V2: keys and values are made from a latent, which is what is kept."""

    def step(weights: Any, latents: Any, tokens: Any, position: Any) -> Any:
        hidden = weights["embed"][tokens]
        latents = latents.at[ROWS, position].set(hidden @ weights["down"])
        keys, values = (jnp.einsum("btl,lhd->bthd", latents, weights[name]) for name in ("to_keys", "to_values"))
        query = (hidden @ weights["query"]).reshape(BATCH, HEADS, SIZE)
        hidden = hidden + attend(query, keys, values, position)
        return next_tokens(weights, hidden), latents

    weights = {
        "embed": array(VOCAB, WIDTH),
        "down": array(WIDTH, 4),
        "to_keys": array(4, HEADS, SIZE),
        "to_values": array(4, HEADS, SIZE),
        "query": array(WIDTH, WIDTH),
        "head": array(WIDTH, VOCAB),
    }
    args = (weights, array(BATCH, LENGTH, 4), TOKENS, LENGTHS)
    return step, args, {"weights": P, "latents": KV, "tokens": B, "position": B}


@case
def a_list_written_with_a_one_hot_product() -> Case:
    """As T5X does on TPUs, where a scatter is slow."""

    def write(cache: Any, new: Any, position: Any) -> Any:
        here = jax.nn.one_hot(position, LENGTH)[:, :, None, None]
        return cache * (1 - here) + here * new[:, None]

    return unrolled(write), in_list(), {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def a_list_to_which_a_one_hot_product_is_added() -> Case:
    """Of a cache that is zero where nothing was written yet."""

    def write(cache: Any, new: Any, position: Any) -> Any:
        return cache + jnp.einsum("bt,bhd->bthd", jax.nn.one_hot(position, LENGTH), new)

    return unrolled(write), in_list(), {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def a_history_written_with_a_one_hot_product() -> Case:
    """What is written at an index is no cache unless attention reads it."""

    def step(weights: Any, cache: Any, history: Any, tokens: Any, position: Any) -> Any:
        layer, hidden = weights["layers"][0], weights["embed"][tokens]
        here = jax.nn.one_hot(position, LENGTH)[:, :, None]
        history = history * (1 - here) + here * hidden[:, None]
        query, key, value = qkv(layer, hidden, position)
        keys, values = (old + here[..., None] * new[:, None] for old, new in zip(cache, (key, value), strict=True))
        hidden = add(layer, hidden, attend(query, keys, values, position)) + history.mean(1)
        return next_tokens(weights, hidden), Cache(keys, values), history

    args = (WEIGHTS, Cache(CACHE, CACHE), array(BATCH, LENGTH, WIDTH), TOKENS, LENGTHS)
    return step, args, {"weights": P, "cache": KV, "history": S, "tokens": B, "position": B}


def reader(read: Callable[..., Any], memory: Any, expected: dict[str, str], weights: Any = WEIGHTS) -> Case:
    """A network whose layers attend to something that the step does not write.

    Args:
        read: makes keys and values, and perhaps other queries, from `(weights, memory, number of the layer, hidden)`.
    """

    def step(weights: Any, memory: Any, tokens: Any, lengths: Any) -> Any:
        hidden = weights["embed"][tokens]
        for number, layer in enumerate(weights["layers"]):
            query, _, _ = qkv(layer, hidden, lengths)
            keys, values, *other = read(weights, memory, number, hidden)
            hidden = add(layer, hidden, attend(*(other or [query]), keys, values, lengths))
        return hidden @ weights["head"]

    right = {"weights": P, "tokens": B, "lengths": B, **expected}
    return step, (weights, memory, TOKENS, LENGTHS), right


@case
def only_read_in_8_bits_with_scales() -> Case:
    def read(weights: Any, memory: Any, number: Any, hidden: Any) -> Any:
        layer = memory["layers"][number]
        return [layer[part]["int8"].astype(jnp.float32) * layer[part]["scale"] for part in "kv"]

    part = {"int8": array(*CACHE.shape, dtype=jnp.int8), "scale": array(BATCH, LENGTH, HEADS, 1)}
    return reader(read, {"layers": [{"k": part, "v": part}] * LAYERS}, {"memory": KV})


@case
def only_read_in_pages_with_a_table() -> Case:
    def read(weights: Any, memory: Any, number: Any, hidden: Any) -> Any:
        return memory["pool"][number][:, memory["table"]].reshape(2, BATCH, -1, HEADS, SIZE)

    memory = {"pool": array(LAYERS, 2, 9, 4, HEADS, SIZE), "table": array(BATCH, 3, dtype=jnp.int32)}
    return reader(read, memory, {"memory['pool']": KV, "memory['table']": B})


@case
def only_read_by_fewer_heads_than_ask_and_rotated_by_tables() -> Case:
    def read(weights: Any, memory: Any, number: Any, hidden: Any) -> Any:
        cosine, sine = memory["cosine"][:, None], memory["sine"][:, None]
        query = (hidden @ weights["query"]).reshape(BATCH, HEADS, SIZE)
        one, other = jnp.split(memory["k"][number], 2, -1)
        keys = jnp.concatenate([one * cosine - other * sine, other * cosine + one * sine], -1)
        one, other = jnp.split(query, 2, -1)
        query = jnp.concatenate([one * cosine[0] - other * sine[0], other * cosine[0] + one * sine[0]], -1)
        return *(jnp.repeat(each, HEADS, 2) for each in (keys, memory["v"][number])), query

    few, table = array(LAYERS, BATCH, LENGTH, 1, SIZE), array(LENGTH, SIZE // 2)
    memory = {"k": few, "v": few, "cosine": table, "sine": table}
    expected = {"memory['k']": KV, "memory['v']": KV}
    weights = {**WEIGHTS, "query": array(WIDTH, WIDTH)}
    case = reader(read, memory, expected, weights)
    return case[0], case[1], {"weights": P, **expected}


@case
def only_read_and_kept_in_one_argument_with_all_else() -> Case:
    def step(state: Any, tokens: Any) -> Any:
        hidden, weights = state["weights"]["embed"][tokens], state["weights"]
        for layer, (keys, values) in zip(weights["layers"], state["cross"], strict=True):
            query, _, _ = qkv(layer, hidden, state["position"])
            hidden = add(layer, hidden, attend(query, keys, values, state["position"]))
        return next_tokens(weights, hidden), {**state, "position": state["position"] + 1}

    state = {"weights": WEIGHTS, "cross": [Cache(CACHE, CACHE)] * LAYERS, "position": LENGTHS}
    return step, (state, TOKENS), {"state['weights']": P, "state['cross']": KV, "state['position']": S, "tokens": B}


@case
def the_result_of_an_encoder_is_data() -> Case:
    def read(weights: Any, memory: Any, number: Any, hidden: Any) -> Any:
        return [(memory @ weights[name]).reshape(BATCH, LENGTH, HEADS, SIZE) for name in ("key", "value")]

    weights = {**WEIGHTS, "key": array(24, WIDTH), "value": array(24, WIDTH)}
    return reader(read, array(BATCH, LENGTH, 24), {"memory": B}, weights)


@case
def raw_data_that_asks_itself_are_data() -> Case:
    """Attention over features of a graph's nodes, whose queries alone are made with weights."""

    def step(weights: Any, nodes: Any) -> Any:
        query = jnp.tanh(nodes @ weights["one"]) @ weights["other"]
        scores = jax.nn.softmax(jnp.einsum("gnd,gmd->gnm", query, nodes))
        return jnp.einsum("gnm,gmd->gnd", scores, nodes) @ weights["head"]

    weights = {"one": array(WIDTH, 24), "other": array(24, WIDTH), "head": array(WIDTH, 3)}
    return step, (weights, array(BATCH, LENGTH, WIDTH)), {"weights": P, "nodes": B}


@case
def points_and_neighbours_without_weights_are_data() -> Case:
    """A kernel smoother for each sequence (Nadaraya and Watson), and a network that works on what it says."""

    def step(weights: Any, asked: Any, points: Any, values: Any) -> Any:
        near = jax.nn.softmax(jnp.einsum("bqd,bnd->bqn", asked, points))
        return jax.nn.relu(jnp.einsum("bqn,bnv->bqv", near, values) @ weights["in"]) @ weights["out"]

    weights = {"in": array(5, WIDTH), "out": array(WIDTH, 3)}
    args = (weights, array(BATCH, 4, WIDTH), array(BATCH, LENGTH, WIDTH), array(BATCH, LENGTH, 5))
    return step, args, {"weights": P, "asked": B, "points": B, "values": B}


@case
def keys_and_values_that_are_learned_are_weights() -> Case:
    """A layer with a memory of its own (Sukhbaatar et al. 2019)."""

    def read(weights: Any, memory: Any, number: Any, hidden: Any) -> Any:
        return [jnp.broadcast_to(weights["memory"][number][part], CACHE.shape) for part in (0, 1)]

    weights = {**WEIGHTS, "memory": array(LAYERS, 2, LENGTH, HEADS, SIZE)}
    case = reader(read, array(BATCH), {}, weights)
    return case[0], case[1], {"weights": P}


def encoder_decoder(*, is_one_argument: bool) -> Case:
    """Keys and values of an encoder's results, which a decode step reads and does not write."""

    def step(weights: Any, cache: Any, cross: Any, tokens: Any, position: Any) -> Any:
        hidden, written = weights["embed"][tokens], []
        cross_keys, cross_values = cache["cross"] if is_one_argument else cross
        for number, layer in enumerate(weights["layers"]):
            query, key, value = qkv(layer, hidden, position)
            keys, values = cache["self"][number]
            written.append(Cache(keys.at[ROWS, position].set(key), values.at[ROWS, position].set(value)))
            hidden = hidden + attend(query, *written[-1], position) @ layer["out"]
            query = (hidden @ layer["cross_query"]).reshape(BATCH, HEADS, SIZE)
            scores = jax.nn.softmax(jnp.einsum("bhd,bthd->bht", query, cross_keys[number]))
            attended = jnp.einsum("bht,bthd->bhd", scores, cross_values[number]).reshape(BATCH, WIDTH)
            hidden = add(layer, hidden, attended)
        new = {"self": written, "cross": cache["cross"]} if is_one_argument else {"self": written}
        return next_tokens(weights, hidden), new

    weights = {**WEIGHTS, "layers": [{**LAYER, "cross_query": array(WIDTH, WIDTH)}] * LAYERS}
    encoded = Cache(*[array(LAYERS, BATCH, 7, HEADS, SIZE)] * 2)
    cache = {"self": [Cache(CACHE, CACHE)] * LAYERS}
    args = (weights, {**cache, "cross": encoded} if is_one_argument else cache, encoded, TOKENS, LENGTHS)
    right = {"weights": P, "cache": KV, "tokens": B, "position": B}
    return step, args, right if is_one_argument else {**right, "cross": KV}


@case
def an_encoder_decoder_that_returns_the_whole_cache() -> Case:
    return encoder_decoder(is_one_argument=True)


@case
def an_encoder_decoder_with_an_argument_of_its_own() -> Case:
    return encoder_decoder(is_one_argument=False)


@case
def adapters_of_which_each_sequence_has_its_own() -> Case:
    def step(params: Any, adapters: Any, caches: Any, tokens: Any, position: Any, adapter: Any) -> Any:
        hidden, written = params["embed"][tokens], []
        for layer, cache in zip(params["layers"], caches, strict=True):
            query, key, value = qkv(layer, hidden, position)
            low = jnp.einsum("bd,bdr->br", hidden, adapters["down"][adapter])
            query += jnp.einsum("br,brd->bd", low, adapters["up"][adapter]).reshape(query.shape)
            written.append(Cache(cache.k.at[ROWS, position].set(key), cache.v.at[ROWS, position].set(value)))
            hidden = add(layer, hidden, attend(query, *written[-1], position))
        return next_tokens(params, hidden), written

    adapters = {"down": array(5, WIDTH, 4), "up": array(5, 4, WIDTH)}
    args = (WEIGHTS, adapters, [Cache(CACHE, CACHE)] * LAYERS, TOKENS, LENGTHS, array(BATCH, dtype=jnp.int32))
    return step, args, {"params": P, "adapters": P, "caches": KV, "tokens": B, "position": B, "adapter": B}


@case
def a_quantised_embedding() -> Case:
    """Its rows and their scales are looked up; no product applies them."""

    def step(weights: Any, caches: Any, tokens: Any, position: Any) -> Any:
        table = weights["table"]
        embedded = table["int8"][tokens] * table["scale"][tokens][:, None]
        hidden, written = embedded, []
        for layer, cache in zip(weights["layers"], caches, strict=True):
            query, key, value = qkv(layer, hidden, position)
            written.append(Cache(cache["k"].at[ROWS, position].set(key), cache["v"].at[ROWS, position].set(value)))
            hidden = add(layer, hidden, attend(query, *written[-1], position))
        return next_tokens(weights, hidden), [each._asdict() for each in written]

    table = {"int8": array(VOCAB, WIDTH, dtype=jnp.int8), "scale": array(VOCAB)}
    weights = {"table": table, "layers": [LAYER] * LAYERS, "head": array(WIDTH, VOCAB)}
    args = (weights, *in_list()[1:])
    return step, args, {"weights": P, "caches": KV, "tokens": B, "position": B}


@case
def an_encoder_with_positions_that_it_has_learned() -> Case:
    def step(weights: Any, tokens: Any, kinds: Any, mask: Any) -> Any:
        hidden = weights["words"][tokens] + weights["kinds"][kinds] + weights["positions"][None]
        for layer in weights["layers"]:
            query, key, value = jnp.split(hidden @ layer["qkv"] + layer["bias"], 3, -1)
            scores = jnp.einsum("bqd,bkd->bqk", query, key) + (1 - mask)[:, None] * -1e9
            attended = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value)
            hidden = add(layer, hidden, attended)
        return jnp.tanh(hidden[:, 0] @ weights["pool"])

    tables = {"words": array(VOCAB, WIDTH), "kinds": array(3, WIDTH), "positions": array(LENGTH, WIDTH)}
    weights = {**tables, "layers": [LAYER] * LAYERS, "pool": array(WIDTH, WIDTH)}
    tokens = array(BATCH, LENGTH, dtype=jnp.int32)
    args = (weights, tokens, tokens, array(BATCH, LENGTH))
    return step, args, {"weights": P, "tokens": B, "kinds": B, "mask": B}


def scored(*, in_dict: bool) -> Case:
    """Positions and scores of sequences are carried, as arguments and results of their own or in one dictionary."""

    def step(weights: Any, cache: Any, tokens: Any, position: Any, score: Any) -> Any:
        hidden, layer = weights["embed"][tokens], weights["layers"][0]
        query, key, value = qkv(layer, hidden, position)
        keys, values = (old.at[ROWS, position].set(new) for old, new in zip(cache, (key, value), strict=True))
        hidden = add(layer, hidden, attend(query, keys, values, position))
        chances = jax.nn.log_softmax(hidden @ weights["head"])
        return chances.argmax(-1), Cache(keys, values), position + 1, score + chances.max(-1)

    def with_dict(weights: Any, cache: Any, carried: Any) -> Any:
        tokens, cache, position, score = step(weights, cache, *(carried[name] for name in NAMES))
        return cache, dict(zip(NAMES, (tokens, position, score), strict=True))

    carried = (TOKENS, LENGTHS, array(BATCH))
    if in_dict:
        args = (WEIGHTS, Cache(CACHE, CACHE), dict(zip(NAMES, carried, strict=True)))
        return with_dict, args, {"weights": P, "cache": KV, "carried": S}
    args = (WEIGHTS, Cache(CACHE, CACHE), *carried)
    return step, args, {"weights": P, "cache": KV, "tokens": B, "position": S, "score": S}


NAMES = ("tokens", "position", "score")


@case
def scores_and_positions_as_arguments() -> Case:
    return scored(in_dict=False)


@case
def scores_and_positions_in_a_dictionary() -> Case:
    return scored(in_dict=True)


@case
def a_loss_of_each_example_is_not_the_next_label() -> Case:
    def step(weights: Any, x: Any, label: Any) -> Any:
        made = (jnp.tanh(x @ weights["in"]) @ weights["out"])[:, 0]
        return label - made, (label - made) ** 2

    args = ({"in": array(WIDTH, 64), "out": array(64, 1)}, array(BATCH, WIDTH), array(BATCH))
    return step, args, {"weights": P, "x": B, "label": B}


@case
def a_first_guess_that_a_loop_refines_is_data() -> Case:
    def step(weights: Any, x: Any, guess: Any) -> Any:
        made = (jnp.tanh(x @ weights["in"]) @ weights["out"])[:, 0]
        return jax.lax.fori_loop(0, 5, lambda _, at: 0.5 * (at + made / at), guess)

    args = ({"in": array(WIDTH, 64), "out": array(64, 1)}, array(BATCH, WIDTH), array(BATCH))
    return step, args, {"weights": P, "x": B, "guess": B}


def quantised(embed: Callable[[Any, Any], Any], table: Any) -> Case:
    """A network of one layer whose embedding table and head are integers with scales, beside a table of other names."""

    def step(weights: Any, cache: Any, tokens: Any, position: Any) -> Any:
        hidden = embed(weights["embed"], weights["renamed"][tokens])
        query, key, value = qkv(weights["layer"], hidden, position)
        keys, values = (old.at[ROWS, position].set(new) for old, new in zip(cache, (key, value), strict=True))
        hidden = add(weights["layer"], hidden, attend(query, keys, values, position))
        logits = (hidden @ weights["head"]["int8"].astype(jnp.float32)) * weights["head"]["scale"]
        return jnp.argmax(logits, -1), Cache(keys, values)

    weights = {
        "embed": {"table": table, "scale": array(VOCAB)},
        "renamed": array(VOCAB, dtype=jnp.int32),
        "layer": LAYER,
        "head": {"int8": array(WIDTH, VOCAB, dtype=jnp.int8), "scale": array(VOCAB)},
    }
    parts = {f"weights['{part}']": P for part in ("embed", "layer", "head")}
    right = {**parts, "weights['renamed']": S, "cache": KV, "tokens": B, "position": B}
    return step, (weights, Cache(CACHE, CACHE), TOKENS, LENGTHS), right


@case
def a_table_in_8_bits_whose_rows_are_scaled() -> Case:
    def embed(part: Any, tokens: Any) -> Any:
        return part["table"][tokens].astype(jnp.float32) * part["scale"][tokens][:, None]

    return quantised(embed, array(VOCAB, WIDTH, dtype=jnp.int8))


@case
def a_table_in_8_bits_that_is_scaled_as_a_whole() -> Case:
    def embed(part: Any, tokens: Any) -> Any:
        return (part["table"] * part["scale"][:, None])[tokens]

    return quantised(embed, array(VOCAB, WIDTH, dtype=jnp.int8))


@case
def a_table_of_which_two_elements_share_a_byte() -> Case:
    def embed(part: Any, tokens: Any) -> Any:
        packed = part["table"][tokens]
        numbers = jnp.stack([packed & 15, packed >> 4], -1).reshape(BATCH, WIDTH).astype(jnp.float32) - 8
        return numbers * part["scale"][tokens][:, None]

    return quantised(embed, array(VOCAB, WIDTH // 2, dtype=jnp.uint8))


@case
def a_state_space_model() -> Case:
    """A selective state-space layer (Gu and Dao 2023): what it carries is no cache of keys and values."""

    def step(params: Any, state: Any, tokens: Any) -> Any:
        hidden, new = params["embed"][tokens], []
        for layer, (window, ssm) in zip(params["layers"], state, strict=True):
            inner, gate = jnp.split(hidden @ layer["in"], 2, -1)
            window = jnp.concatenate([window[:, 1:], inner[:, None]], 1)
            inner = jax.nn.silu(jnp.einsum("bkd,kd->bd", window, layer["conv"]))
            delta, b, c = jnp.split(inner @ layer["x"], [WIDTH, WIDTH + 4], -1)
            delta = jax.nn.softplus(delta @ layer["dt"])
            decay = jnp.exp(-jnp.einsum("bd,dn->bdn", delta, jnp.exp(layer["a"])))
            ssm = decay * ssm + (delta * inner)[:, :, None] * b[:, None]
            hidden = hidden + (jnp.einsum("bdn,bn->bd", ssm, c) * jax.nn.silu(gate)) @ layer["out"]
            new.append((window, ssm))
        return next_tokens(params, hidden), new

    layer = {
        "in": array(WIDTH, 2 * WIDTH),
        "conv": array(4, WIDTH),
        "x": array(WIDTH, WIDTH + 8),
        "dt": array(WIDTH, WIDTH),
        "a": array(WIDTH, 4),
        "out": array(WIDTH, WIDTH),
    }
    params = {"embed": array(VOCAB, WIDTH), "layers": [layer] * 2, "head": array(WIDTH, VOCAB)}
    state = [(array(BATCH, 4, WIDTH), array(BATCH, WIDTH, 4))] * 2
    return step, (params, state, TOKENS), {"params": P, "state": S, "tokens": B}


@case
def a_recurrent_network_with_a_history_of_tokens() -> Case:
    def step(params: Any, state: Any, tokens: Any) -> Any:
        inputs = params["embed"][tokens]
        hidden = jnp.tanh(inputs @ params["in"] + state["hidden"] @ params["recurrent"])
        history = state["history"].at[:, state["count"]].set(tokens)
        return next_tokens(params, hidden), {"hidden": hidden, "history": history, "count": state["count"] + 1}

    params = {
        "embed": array(VOCAB, WIDTH),
        "in": array(WIDTH, WIDTH),
        "recurrent": array(WIDTH, WIDTH),
        "head": array(WIDTH, VOCAB),
    }
    state = {
        "hidden": array(BATCH, WIDTH),
        "history": array(BATCH, LENGTH, dtype=jnp.int32),
        "count": array(dtype=jnp.int32),
    }
    return step, (params, state, TOKENS), {"params": P, "state": S, "tokens": B}


@pytest.mark.with_each_jax
@pytest.mark.parametrize("name", CASES)
def test_weights_are_params_and_what_attention_reads_is_the_cache(name: str) -> None:
    step, args, expected = CASES[name]()
    found, _ = roles(StepSpec(step, args))
    wrong = {
        path: role
        for path, role in found.items()
        for prefix, right in expected.items()
        if path.startswith(prefix) and (path[len(prefix) :] or ".")[0] in ".[" and role != right
    }
    assert wrong == {}
    assert all(any(path.startswith(prefix) for path in found) for prefix in expected)


@pytest.mark.parametrize("name", ["linen_decode", "a_loop_over_a_stacked_named_tuple", "pages_of_a_pool"])
def test_a_step_with_a_cache_needs_no_note(name: str) -> None:
    step, args, _ = CASES[name]()
    assert roles(StepSpec(step, args))[1] == ()


@pytest.mark.parametrize("joined", [False, True], ids=["leaf by leaf", "joined"])
def test_the_state_of_a_sampler_is_no_cache(joined: bool) -> None:
    """Logistic regression by Hamiltonian Monte Carlo: the gradient is a product with an exponential of a product."""

    def energy(position: Any, x: Any, y: Any) -> Any:
        logits = x @ position["w"] + position["b"]
        return jnp.sum(jnp.logaddexp(0.0, jnp.where(y == 1, -logits, logits)))

    def step(state: Any, key: Any, x: Any, y: Any) -> Any:
        position, gradient = state
        new = jax.tree.map(lambda at, slope: at - 0.1 * slope, position, gradient)
        value, new_gradient = jax.value_and_grad(energy)(new, x, y)
        if joined:
            value += jnp.sum(jnp.concatenate([new["b"][None], new["w"]]) ** 2)
        accepted = jax.random.uniform(key) < jnp.exp(energy(position, x, y) - value)
        chosen = jax.tree.map(lambda one, other: jnp.where(accepted, one, other), (new, new_gradient), state)
        return chosen, jax.random.split(key)[0]

    position = {"w": array(WIDTH), "b": array()}
    args = ((position, position), jax.random.key(0), array(LENGTH, WIDTH), array(LENGTH, dtype=jnp.int32))
    found, _ = roles(StepSpec(step, args))
    assert KV not in found.values()


def test_a_queue_that_training_fills_is_no_cache() -> None:
    def loss(weights: Any, queue: Any, x: Any) -> Any:
        scores = jax.nn.softmax((x @ weights) @ queue.T)
        return jnp.mean((scores @ queue - x) ** 2)

    def step(weights: Any, queue: Any, x: Any) -> Any:
        gradient = jax.grad(loss)(weights, queue, x)
        return weights - 0.1 * gradient, jnp.concatenate([queue[BATCH:], x @ weights])

    found, _ = roles(StepSpec(step, (array(4, 4), array(LENGTH, 4), array(BATCH, 4))))
    assert found == {"weights": P, "queue": S, "x": B}


def test_a_codebook_is_no_cache() -> None:
    """It has one set of vectors for the whole batch, and attention has keys and values for each sequence."""

    def step(weights: Any, codebook: Any, x: Any) -> Any:
        nearest = jax.nn.softmax(jnp.tanh(x @ weights["in"]) @ weights["out"] @ codebook.T)
        return nearest @ codebook

    args = ({"in": array(4, WIDTH), "out": array(WIDTH, SIZE)}, array(LENGTH, SIZE), array(BATCH, 4))
    found, _ = roles(StepSpec(step, args))
    assert KV not in found.values()


def test_keys_and_values_that_a_training_step_reads_are_data() -> None:
    def loss(weights: Any, keys: Any, values: Any, x: Any) -> Any:
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x @ weights, keys))
        return jnp.mean((jnp.einsum("bt,btd->bd", scores, values) - x) ** 2)

    def step(weights: Any, keys: Any, values: Any, x: Any) -> Any:
        return weights - 0.1 * jax.grad(loss)(weights, keys, values, x)

    read = array(BATCH, LENGTH, 4)
    found, _ = roles(StepSpec(step, (array(4, 4), read, read, array(BATCH, 4))))
    assert found == {"weights": P, "keys": B, "values": B, "x": B}


def test_a_data_set_in_8_bits_is_no_table_of_weights() -> None:
    def step(weights: Any, images: Any, chosen: Any) -> Any:
        x = images["pixels"][chosen].astype(jnp.float32) / 255
        return jax.nn.relu(x @ weights["in"]) @ weights["out"] == images["labels"][chosen][:, None]

    images = {"pixels": array(50, WIDTH, dtype=jnp.uint8), "labels": array(50, dtype=jnp.int32)}
    args = ({"in": array(WIDTH, 64), "out": array(64, 3)}, images, array(4, dtype=jnp.int32))
    found, _ = roles(StepSpec(step, args))
    assert {path for path, role in found.items() if role == P} == {"weights['in']", "weights['out']"}
