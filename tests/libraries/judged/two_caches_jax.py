"""A server's decode step that keeps the prompt's keys and values apart from the generated ones, both in 8-bit integers with
scales: the prompt's part is only read, the other one is a ring. The two attentions are joined by their softmax statistics."""

import jax, jax.numpy as jnp

V, D, H, KV, HD, F, L, B, P, R = 32000, 2048, 16, 4, 128, 5632, 2, 64, 1024, 512
bf16, f32 = jnp.bfloat16, jnp.float32


def quantise(x):
    scale = jnp.max(jnp.abs(x.astype(f32)), -1, keepdims=True) / 127 + 1e-6
    return jnp.round(x / scale).astype(jnp.int8), scale


def partial(q, c, mask):
    k = c["key"].astype(bf16) * c["key_scale"].astype(bf16)
    v = c["value"].astype(bf16) * c["value_scale"].astype(bf16)
    s = jnp.einsum("bkgd,bskd->bkgs", q, k).astype(f32) * HD**-0.5
    s = jnp.where(mask[:, None, None], s, -1e30)
    top = s.max(-1, keepdims=True)
    p = jnp.exp(s - top)
    return jnp.einsum("bkgs,bskd->bkgd", p.astype(bf16), v), top, p.sum(-1, keepdims=True)


def make():
    def generate(params, prefill_cache, ar_cache, tokens, true_lengths):
        x = params["embed"][tokens]
        ring, filled = ar_cache["next_pos"] % R, jnp.minimum(ar_cache["next_pos"], R - 1)
        new = []
        for w, before, after in zip(params["layers"], prefill_cache, ar_cache["layers"]):
            h = (x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(f32)), -1, keepdims=True) + 1e-6)).astype(bf16) * w["norm1"]
            q = jnp.einsum("bd,dkgh->bkgh", h, w["query"])
            fresh = {}
            for name in ("key", "value"):
                number, scale = quantise(jnp.einsum("bd,dkh->bkh", h, w[name]))
                fresh[name] = jax.lax.dynamic_update_slice(after[name], number[:, None], (0, ring, 0, 0))
                fresh[f"{name}_scale"] = jax.lax.dynamic_update_slice(after[f"{name}_scale"], scale[:, None], (0, ring, 0, 0))
            a = partial(q, before, jnp.arange(P) < true_lengths[:, None])
            b = partial(q, fresh, jnp.broadcast_to(jnp.arange(R) <= filled, (B, R)))
            top = jnp.maximum(a[1], b[1])
            wa, wb = jnp.exp(a[1] - top), jnp.exp(b[1] - top)
            y = ((a[0] * wa + b[0] * wb) / (a[2] * wa + b[2] * wb)).astype(bf16)
            x = x + jnp.einsum("bkgh,kghd->bd", y, w["out"])
            h = (x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(f32)), -1, keepdims=True) + 1e-6)).astype(bf16) * w["norm2"]
            x = x + (jax.nn.silu(h @ w["wi_0"]) * (h @ w["wi_1"])) @ w["wo"]
            new.append(fresh)
        logits = (x @ params["unembed"]).astype(f32)
        return jnp.argmax(logits, -1), {"layers": new, "next_pos": ar_cache["next_pos"] + 1}

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)

    def cache(length):
        numbers, scales = s(B, length, KV, HD, dtype=jnp.int8), s(B, length, KV, 1, dtype=f32)
        return {"key": numbers, "key_scale": scales, "value": numbers, "value_scale": scales}

    layer = {
        "norm1": s(D), "query": s(D, KV, H // KV, HD), "key": s(D, KV, HD), "value": s(D, KV, HD), "out": s(KV, H // KV, HD, D),
        "norm2": s(D), "wi_0": s(D, F), "wi_1": s(D, F), "wo": s(F, D),
    }
    params = {"embed": s(V, D), "layers": [layer] * L, "unembed": s(D, V)}
    i32 = jnp.int32
    ar = {"layers": [cache(R)] * L, "next_pos": s(dtype=i32)}
    return jax.jit(generate, donate_argnums=2), (params, [cache(P)] * L, ar, s(B, dtype=i32), s(B, dtype=i32))
