"""Multi-head latent attention as DeepSeek's, NNX modules: the cache holds a compressed vector and one rotary key for each token;
up-projections are absorbed into queries and outputs. Experts with top-2 routing in place of the MLP."""

import jax, jax.numpy as jnp
from flax import nnx

V, D, H, C, R, HD, F, EXPERTS, L, B, S = 16000, 1024, 16, 512, 64, 128, 1024, 8, 3, 32, 4096
bf16 = jnp.bfloat16


def weight(rngs, *shape):
    return nnx.Param(jax.random.normal(rngs.params(), shape, bf16) * shape[0] ** -0.5)


def rotate(x, pos):
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    angle = pos.reshape(-1, *[1] * (x.ndim - 1)) / 10000.0 ** (jnp.arange(R // 2) / (R // 2))
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1).astype(bf16)


class LatentAttention(nnx.Module):
    def __init__(self, rngs):
        self.wq = weight(rngs, D, H, HD + R)
        self.w_down = weight(rngs, D, C + R)
        self.kv_norm = nnx.RMSNorm(C, dtype=bf16, rngs=rngs)
        self.w_uk = weight(rngs, C, H, HD)
        self.w_uv = weight(rngs, C, H, HD)
        self.wo = weight(rngs, H, HD, D)

    def __call__(self, x, latents, rope_keys, pos):
        q = jnp.einsum("bd,dhe->bhe", x, self.wq[...])
        q_nope, q_rope = q[..., :HD], rotate(q[..., HD:], pos)
        c, k_rope = jnp.split(x @ self.w_down[...], [C], -1)
        rows = jnp.arange(B)
        latents = latents.at[rows, pos].set(self.kv_norm(c))
        rope_keys = rope_keys.at[rows, pos].set(rotate(k_rope, pos))
        absorbed = jnp.einsum("bhe,che->bhc", q_nope, self.w_uk[...])
        scores = jnp.einsum("bhc,bsc->bhs", absorbed, latents) + jnp.einsum("bhr,bsr->bhs", q_rope, rope_keys)
        scores = jnp.where((jnp.arange(S) <= pos[:, None])[:, None], scores.astype(jnp.float32) * (HD + R) ** -0.5, -1e30)
        context = jnp.einsum("bhs,bsc->bhc", jax.nn.softmax(scores, -1).astype(bf16), latents)
        out = jnp.einsum("bhc,che->bhe", context, self.w_uv[...])
        return jnp.einsum("bhe,hed->bd", out, self.wo[...]), latents, rope_keys


class Experts(nnx.Module):
    def __init__(self, rngs):
        self.router = nnx.Linear(D, EXPERTS, use_bias=False, dtype=bf16, param_dtype=bf16, rngs=rngs)
        self.w1, self.w3, self.w2 = (weight(rngs, EXPERTS, *s) for s in ((D, F), (D, F), (F, D)))

    def __call__(self, x):
        gates, chosen = jax.lax.top_k(jax.nn.softmax(self.router(x).astype(jnp.float32)), 2)
        mix = jnp.zeros((B, EXPERTS)).at[jnp.arange(B)[:, None], chosen].set(gates).astype(bf16)
        h = jax.nn.silu(jnp.einsum("bd,xdf->xbf", x, self.w1[...])) * jnp.einsum("bd,xdf->xbf", x, self.w3[...])
        return jnp.einsum("xbf,xfd,bx->bd", h, self.w2[...], mix)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = (nnx.RMSNorm(D, dtype=bf16, param_dtype=bf16, rngs=rngs) for _ in range(2))
        self.attn, self.moe = LatentAttention(rngs), Experts(rngs)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(V, D, dtype=bf16, param_dtype=bf16, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(L)])
        self.norm = nnx.RMSNorm(D, dtype=bf16, param_dtype=bf16, rngs=rngs)
        self.head = nnx.Linear(D, V, use_bias=False, dtype=bf16, param_dtype=bf16, rngs=rngs)

    def __call__(self, tokens, cache, pos):
        x = self.embed(tokens)
        c_kv, k_pe = [], []
        for i, block in enumerate(self.blocks):
            y, c, k = block.attn(block.norm1(x), cache["c_kv"][i], cache["k_pe"][i], pos)
            x = x + y
            x = x + block.moe(block.norm2(x))
            c_kv.append(c)
            k_pe.append(k)
        return self.head(self.norm(x)), {"c_kv": c_kv, "k_pe": k_pe}


def make():
    graphdef, params = nnx.eval_shape(lambda: nnx.split(Model(nnx.Rngs(0))))

    def step(params, cache, tokens, pos):
        logits, cache = nnx.merge(graphdef, params)(tokens, cache, pos)
        return jnp.argmax(logits, -1), cache, pos + 1

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)
    cache = {"c_kv": [s(B, S, C)] * L, "k_pe": [s(B, S, R)] * L}
    ids = s(B, dtype=jnp.int32)
    return jax.jit(step, donate_argnums=1), (params, cache, ids, ids)
