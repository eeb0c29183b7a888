"""Decode step with weights in 8-bit integers, all layers stacked and run by a fori_loop whose carry is the whole cache: each layer
is written and read by its index. Plain JAX, cache donated, one position for each sequence."""

import jax, jax.numpy as jnp
from jax import lax

V, D, H, KV, HD, F, L, B, S = 32000, 2048, 16, 8, 128, 8192, 6, 16, 2048
bf16 = jnp.bfloat16


def matmul(x, w, i):
    number = lax.dynamic_index_in_dim(w["q"], i, keepdims=False)
    scale = lax.dynamic_index_in_dim(w["s"], i, keepdims=False)
    return (x @ number.astype(bf16)) * scale


def make():
    def decode(w, cache, tokens, pos):
        rows = jnp.arange(B)
        x = w["embed"]["q"][tokens].astype(bf16) * w["embed"]["s"][tokens][:, None]

        def layer(i, carry):
            x, cache = carry
            norm = lambda x, n: (x / (1e-5 + jnp.sqrt(jnp.mean(jnp.square(x), -1, keepdims=True)))) * w[n][i]
            h = norm(x, "ln1")
            q = matmul(h, w["wq"], i).reshape(B, KV, H // KV, HD)
            kv = matmul(h, w["wkv"], i).reshape(B, 2, KV, HD)
            cache = cache.at[i, rows, pos].set(kv)
            here = lax.dynamic_index_in_dim(cache, i, keepdims=False)
            s = jnp.einsum("bkgh,bskh->bkgs", q, here[:, :, 0]).astype(jnp.float32) * HD**-0.5
            p = jax.nn.softmax(jnp.where((jnp.arange(S) <= pos[:, None])[:, None, None], s, -1e30))
            y = jnp.einsum("bkgs,bskh->bkgh", p.astype(bf16), here[:, :, 1]).reshape(B, H * HD)
            x = x + matmul(y, w["wo"], i)
            h = norm(x, "ln2")
            return x + matmul(jax.nn.silu(matmul(h, w["w1"], i)) * matmul(h, w["w3"], i), w["w2"], i), cache

        x, cache = lax.fori_loop(0, L, layer, (x, cache))
        logits = x @ w["head"]["q"].astype(bf16) * w["head"]["s"]
        return jnp.argmax(logits, -1).astype(jnp.int32), cache, pos + 1

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)
    q = lambda i, o: {"q": s(L, i, o, dtype=jnp.int8), "s": s(L, o)}
    w = {
        "embed": {"q": s(V, D, dtype=jnp.int8), "s": s(V)}, "head": {"q": s(D, V, dtype=jnp.int8), "s": s(V)},
        "ln1": s(L, D), "ln2": s(L, D), "wq": q(D, H * HD), "wkv": q(D, 2 * KV * HD), "wo": q(H * HD, D),
        "w1": q(D, F), "w3": q(D, F), "w2": q(F, D),
    }
    ids = s(B, dtype=jnp.int32)
    return jax.jit(decode, donate_argnums=1), (w, s(L, B, S, 2, KV, HD), ids, ids)
