"""Continuous batching in plain JAX: a pool of pages for each layer (keys and values interleaved), block tables, slot mapping;
attention walks over the pages of a sequence with a running maximum, as flash decoding does."""

import jax, jax.numpy as jnp
from jax import lax

V, D, H, KV, HD, F, L, B, PAGES, PAGE, MAXP = 32000, 2048, 16, 4, 128, 5632, 3, 64, 4096, 16, 128
bf16 = jnp.bfloat16


def norm(x, w):
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-5)).astype(x.dtype) * w


def paged_attention(q, pool, tables, lens):
    q = q.reshape(B, KV, H // KV, HD)

    def one_page(carry, j):
        m, l, acc = carry
        page = pool[tables[:, j]]  # B, PAGE, 2 KV, HD
        k, v = page[:, :, 0::2], page[:, :, 1::2]
        s = jnp.einsum("bkgh,bpkh->bkgp", q, k, preferred_element_type=jnp.float32) * HD**-0.5
        s = jnp.where((j * PAGE + jnp.arange(PAGE) < lens[:, None])[:, None, None], s, -1e30)
        m_new = jnp.maximum(m, s.max(-1))
        p, scale = jnp.exp(s - m_new[..., None]), jnp.exp(m - m_new)
        acc = acc * scale[..., None] + jnp.einsum("bkgp,bpkh->bkgh", p.astype(bf16), v, preferred_element_type=jnp.float32)
        return (m_new, l * scale + p.sum(-1), acc), None

    zero = jnp.zeros((B, KV, H // KV))
    (_, l, acc), _ = lax.scan(one_page, (zero - 1e30, zero, jnp.zeros((B, KV, H // KV, HD))), jnp.arange(MAXP))
    return (acc / l[..., None]).astype(bf16).reshape(B, H * HD)


def make():
    def execute(weights, kv_pages, tokens, seq_lens, block_tables, slot_mapping, temps, key):
        x = weights["tok_embeddings"][tokens]
        new_pages = []
        for w, pool in zip(weights["layers"], kv_pages):
            h = norm(x, w["attention_norm"])
            q, k, v = h @ w["wq"], (h @ w["wk"]).reshape(B, KV, HD), (h @ w["wv"]).reshape(B, KV, HD)
            kv = jnp.stack([k, v], axis=2).reshape(B, 2 * KV, HD)
            pool = pool.at[slot_mapping // PAGE, slot_mapping % PAGE].set(kv)
            new_pages.append(pool)
            x = x + paged_attention(q, pool, block_tables, seq_lens) @ w["wo"]
            h = norm(x, w["ffn_norm"])
            x = x + (jax.nn.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"]
        logits = (norm(x, weights["norm"]) @ weights["output"]).astype(jnp.float32)
        greedy = jnp.argmax(logits, -1)
        drawn = jax.random.categorical(key, logits / jnp.maximum(temps, 1e-4)[:, None])
        return jnp.where(temps > 0, drawn, greedy).astype(jnp.int32), new_pages

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)
    layer = {
        "attention_norm": s(D), "wq": s(D, H * HD), "wk": s(D, KV * HD), "wv": s(D, KV * HD), "wo": s(H * HD, D),
        "ffn_norm": s(D), "w1": s(D, F), "w3": s(D, F), "w2": s(F, D),
    }
    weights = {"tok_embeddings": s(V, D), "layers": [layer] * L, "norm": s(D), "output": s(D, V)}
    i32 = jnp.int32
    args = (
        weights, [s(PAGES, PAGE, 2 * KV, HD)] * L, s(B, dtype=i32), s(B, dtype=i32), s(B, MAXP, dtype=i32), s(B, dtype=i32),
        s(B, dtype=jnp.float32), jax.eval_shape(lambda: jax.random.PRNGKey(0)),
    )
    return jax.jit(execute, donate_argnums=1), args
