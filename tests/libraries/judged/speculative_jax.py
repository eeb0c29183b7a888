"""Speculative decoding in one jit: a draft model proposes tokens one by one in a scan, the target model scores all of them at once,
the longest agreeing prefix is kept. Two sets of weights and two caches; lengths say what of a cache is valid."""

import dataclasses

import jax, jax.numpy as jnp
from jax import lax

V, B, S, K = 32000, 16, 1024, 4
bf16 = jnp.bfloat16


@dataclasses.dataclass(frozen=True)
class Config:
    d: int
    h: int
    f: int
    n: int


DRAFT, TARGET = Config(512, 8, 2048, 2), Config(2048, 16, 8192, 4)


def ln(x, g):
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    return (y * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)).astype(x.dtype) * g


def run(c, w, cache, tokens, lens):
    """Logits of `tokens` [B, T], whose first one stands at `lens`, and the cache with them in it."""
    where = lens[:, None] + jnp.arange(tokens.shape[1])
    rows = jnp.arange(B)[:, None]
    x = w["wte"][tokens] + w["wpe"][where]
    out = []
    for p, kv in zip(w["h"], cache):
        a = ln(x, p["g1"])
        q, k, v = (jnp.einsum("btd,dhe->bthe", a, p[n]) for n in ("q", "k", "v"))
        kv = kv.at[0, rows, where].set(k).at[1, rows, where].set(v)
        s = jnp.einsum("bthe,bshe->bhts", q, kv[0]).astype(jnp.float32) * (c.d // c.h) ** -0.5
        s = jnp.where((jnp.arange(S) <= where[..., None])[:, None], s, -1e9)
        y = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(s).astype(bf16), kv[1])
        x = x + jnp.einsum("bthe,hed->btd", y, p["o"])
        x = x + jax.nn.gelu(ln(x, p["g2"]) @ p["up"]) @ p["down"]
        out.append(kv)
    return (ln(x, w["g"]) @ w["wte"].T).astype(jnp.float32), out


def make():
    def speculate(target, draft, state):
        def propose(carry, _):
            token, cache, lens = carry
            logits, cache = run(DRAFT, draft, cache, token[:, None], lens)
            nxt = jnp.argmax(logits[:, 0], -1).astype(jnp.int32)
            return (nxt, cache, lens + 1), nxt

        (_, draft_cache, _), guesses = lax.scan(propose, (state["last"], state["draft_kv"], state["lens"]), None, length=K)
        block = jnp.concatenate([state["last"][None], guesses]).T
        logits, target_cache = run(TARGET, target, state["target_kv"], block, state["lens"])
        truth = jnp.argmax(logits, -1).astype(jnp.int32)
        agree = jnp.cumprod(truth[:, :-1] == block[:, 1:], axis=1).sum(1)
        last = jnp.take_along_axis(truth, agree[:, None], 1)[:, 0]
        new = {"last": last, "lens": state["lens"] + agree + 1, "draft_kv": draft_cache, "target_kv": target_cache}
        return new, truth, agree

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)

    def weights(c):
        e = c.d // c.h
        layer = {
            "g1": s(c.d), "q": s(c.d, c.h, e), "k": s(c.d, c.h, e), "v": s(c.d, c.h, e), "o": s(c.h, e, c.d),
            "g2": s(c.d), "up": s(c.d, c.f), "down": s(c.f, c.d),
        }
        return {"wte": s(V, c.d), "wpe": s(S, c.d), "h": [layer] * c.n, "g": s(c.d)}

    kv = lambda c: [s(2, B, S, c.h, c.d // c.h)] * c.n
    ids = s(B, dtype=jnp.int32)
    state = {"last": ids, "lens": ids, "draft_kv": kv(DRAFT), "target_kv": kv(TARGET)}
    return jax.jit(speculate, donate_argnums=2), (weights(TARGET), weights(DRAFT), state)
