"""Sampling from a diffusion model with classifier-free guidance, NNX: a fori_loop over steps, cross-attention over text embeddings
that do not change; the scheduler's tables are arguments. Nothing is a cache."""

import jax, jax.numpy as jnp
from flax import nnx

B, N, C, D, H, T, L, STEPS = 16, 32, 4, 640, 10, 77, 3, 50


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2, self.norm3 = (nnx.LayerNorm(D, rngs=rngs) for _ in range(3))
        self.self_attn = nnx.MultiHeadAttention(H, D, decode=False, rngs=rngs)
        self.cross_attn = nnx.MultiHeadAttention(H, D, in_kv_features=768, decode=False, rngs=rngs)
        self.time = nnx.Linear(D, D, rngs=rngs)
        self.wi, self.wo = nnx.Linear(D, 4 * D, rngs=rngs), nnx.Linear(4 * D, D, rngs=rngs)

    def __call__(self, x, t, text):
        x = x + self.time(nnx.silu(t))[:, None]
        x = x + self.self_attn(self.norm1(x))
        x = x + self.cross_attn(self.norm2(x), text, text)
        return x + self.wo(nnx.gelu(self.wi(self.norm3(x))))


class Denoiser(nnx.Module):
    def __init__(self, rngs):
        self.enter = nnx.Conv(C, D, (3, 3), rngs=rngs)
        self.time = nnx.Linear(128, D, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(L)])
        self.leave = nnx.Conv(D, C, (3, 3), rngs=rngs)

    def __call__(self, x, t, text):
        h = self.enter(x).reshape(x.shape[0], N * N, D)
        angle = t[:, None] * jnp.exp(-jnp.arange(64) * 0.14)
        t = self.time(jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1))
        for block in self.blocks:
            h = block(h, t, text)
        return self.leave(h.reshape(x.shape[0], N, N, D))


def make():
    graphdef, params = nnx.eval_shape(lambda: nnx.split(Denoiser(nnx.Rngs(0))))

    def sample(params, noise, cond, uncond, guidance, schedule):
        model = nnx.merge(graphdef, params)
        text = jnp.concatenate([cond, uncond])

        def body(i, x):
            a, b = schedule["alphas_cumprod"][i], schedule["alphas_cumprod"][i + 1]
            t = jnp.full((2 * B,), schedule["timesteps"][i], jnp.float32)
            eps_c, eps_u = jnp.split(model(jnp.concatenate([x, x]), t, text), 2)
            eps = eps_u + guidance * (eps_c - eps_u)
            clean = (x - jnp.sqrt(1 - a) * eps) / jnp.sqrt(a)
            return jnp.sqrt(b) * clean + jnp.sqrt(1 - b) * eps

        return jax.lax.fori_loop(0, STEPS, body, noise)

    s = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
    schedule = {"alphas_cumprod": s(STEPS + 1), "timesteps": s(STEPS, dtype=jnp.int32)}
    return jax.jit(sample), (params, s(B, N, N, C), s(B, T, 768), s(B, T, 768), s(), schedule)
