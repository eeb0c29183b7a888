"""A sampler like Gemma's and Tunix's: a prefill, then a while loop over decode steps in one jit; the cache is a NamedTuple of
arrays stacked over layers and lies in the loop's carry. Temperature and top-k sampling; the sampling state is donated."""

from typing import NamedTuple

import jax, jax.numpy as jnp
from jax import lax

V, D, H, KV, HD, F, L, B, P, S = 32768, 1024, 8, 2, 128, 4096, 4, 16, 128, 2048
bf16 = jnp.bfloat16


class Cache(NamedTuple):
    k: jax.Array
    v: jax.Array
    end_index: jax.Array


class SamplingState(NamedTuple):
    decoding_step: jax.Array
    token_buffer: jax.Array
    done: jax.Array
    cache: Cache
    temperature: jax.Array
    seed: jax.Array


def rms(x, scale):
    x32 = x.astype(jnp.float32)
    return (x32 * lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6) * (1 + scale)).astype(x.dtype)


def rope(x, positions):
    half = x.shape[-1] // 2
    angle = positions[..., None, None] / 10000.0 ** (jnp.arange(half) / half)
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1).astype(x.dtype)


def block(x, layer, k_cache, v_cache, start, positions):
    h = rms(x, layer["pre_attention_norm"]["scale"])
    q = rope(jnp.einsum("btd,dnh->btnh", h, layer["attn"]["q_einsum"]), positions)
    k, v = jnp.einsum("btd,cdkh->cbtkh", h, layer["attn"]["kv_einsum"])
    k_cache = lax.dynamic_update_slice(k_cache, rope(k, positions), (0, start, 0, 0))
    v_cache = lax.dynamic_update_slice(v_cache, v, (0, start, 0, 0))
    q = q.reshape(*q.shape[:2], KV, H // KV, HD) * HD**-0.5
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k_cache, preferred_element_type=jnp.float32)
    visible = jnp.arange(S)[None, None, :] <= positions[..., None]
    probs = jax.nn.softmax(jnp.where(visible[:, None, None], scores, -2.3e38), -1).astype(bf16)
    out = jnp.einsum("bkgts,bskh->btkgh", probs, v_cache).reshape(*x.shape[:2], H, HD)
    x = x + jnp.einsum("btnh,nhd->btd", out, layer["attn"]["attn_vec_einsum"])
    h = rms(x, layer["pre_ffw_norm"]["scale"])
    gate, up = jnp.einsum("btd,cdf->cbtf", h, layer["mlp"]["gating_einsum"])
    return x + (jax.nn.gelu(gate) * up) @ layer["mlp"]["linear"], k_cache, v_cache


def forward(params, tokens, positions, cache):
    embedding = params["embedder"]["input_embedding"]
    x = embedding[tokens] * jnp.asarray(D**0.5, bf16)

    def body(x, xs):
        layer, k, v = xs
        x, k, v = block(x, layer, k, v, cache.end_index, positions)
        return x, (k, v)

    x, (k, v) = lax.scan(body, x, (params["layers"], cache.k, cache.v))
    x = rms(x[:, -1], params["final_norm"]["scale"])
    logits = jnp.einsum("bd,vd->bv", x, embedding, preferred_element_type=jnp.float32)
    return logits, Cache(k, v, cache.end_index + tokens.shape[1])


def make():
    def pick(logits, state):
        key = jax.random.fold_in(state.seed, state.decoding_step)
        top, ids = lax.top_k(logits, 64)
        choice = jax.random.categorical(key, top / state.temperature)
        return jnp.take_along_axis(ids, choice[:, None], 1)[:, 0]

    def advance(logits, cache, state):
        token = jnp.where(state.done, 0, pick(logits, state))
        step = state.decoding_step + 1
        buffer = lax.dynamic_update_slice(state.token_buffer, token[:, None], (0, step))
        return state._replace(decoding_step=step, token_buffer=buffer, done=state.done | (token == 1), cache=cache)

    def sample(params, prompt, state):
        positions = jnp.broadcast_to(jnp.arange(P), (B, P))
        logits, cache = forward(params, prompt, positions, state.cache)
        buffer = lax.dynamic_update_slice(state.token_buffer, prompt, (0, 0))
        state = advance(logits, cache, state._replace(token_buffer=buffer, decoding_step=jnp.int32(P - 1)))

        def cond(state):
            return (state.decoding_step < S - 1) & ~jnp.all(state.done)

        def body(state):
            last = lax.dynamic_slice(state.token_buffer, (0, state.decoding_step), (B, 1))
            logits, cache = forward(params, last, jnp.full((B, 1), state.decoding_step), state.cache)
            return advance(logits, cache, state)

        return lax.while_loop(cond, body, state)

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)
    params = {
        "embedder": {"input_embedding": s(V, D)},
        "layers": {
            "attn": {"q_einsum": s(L, D, H, HD), "kv_einsum": s(L, 2, D, KV, HD), "attn_vec_einsum": s(L, H, HD, D)},
            "mlp": {"gating_einsum": s(L, 2, D, F), "linear": s(L, F, D)},
            "pre_attention_norm": {"scale": s(L, D)},
            "pre_ffw_norm": {"scale": s(L, D)},
        },
        "final_norm": {"scale": s(D)},
    }
    i32 = jnp.int32
    cache = Cache(s(L, B, S, KV, HD), s(L, B, S, KV, HD), s(dtype=i32))
    seed = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    state = SamplingState(s(dtype=i32), s(B, S, dtype=i32), s(B, dtype=jnp.bool_), cache, s(dtype=jnp.float32), seed)
    return jax.jit(sample, donate_argnums=2), (params, s(B, P, dtype=i32), state)
