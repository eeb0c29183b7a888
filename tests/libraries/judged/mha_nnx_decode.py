"""Flax NNX: nnx.MultiHeadAttention with init_cache and decode=True; cache split off as nnx.Cache, beam scores beside it."""

import jax, jax.numpy as jnp
from flax import nnx

V, D, H, L, B, S = 16384, 1024, 16, 3, 24, 1536


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1 = nnx.LayerNorm(D, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(H, D, dropout_rate=0.1, deterministic=True, decode=True, rngs=rngs)
        self.norm2 = nnx.LayerNorm(D, rngs=rngs)
        self.wi = nnx.Linear(D, 4 * D, rngs=rngs)
        self.wo = nnx.Linear(4 * D, D, rngs=rngs)

    def __call__(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.wo(nnx.gelu(self.wi(self.norm2(x))))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.tok = nnx.Embed(V, D, rngs=rngs)
        self.pos = nnx.Embed(S, D, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(L)])
        self.norm = nnx.LayerNorm(D, rngs=rngs)
        self.head = nnx.Linear(D, V, use_bias=False, rngs=rngs)

    def __call__(self, token, position):
        x = self.tok(token) + self.pos(position)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make():
    def build():
        model = Decoder(nnx.Rngs(0))
        for block in model.blocks:
            block.attn.init_cache((B, S, D))
        return nnx.split(model, nnx.Param, nnx.Cache, ...)

    graphdef, params, cache, rest = nnx.eval_shape(build)

    def step(params, cache, rest, token, position, score):
        model = nnx.merge(graphdef, params, cache, rest)
        logits = model(token, position)
        logp = jax.nn.log_softmax(logits[:, 0])
        best, token = jnp.max(logp, -1), jnp.argmax(logp, -1)[:, None]
        return token, position + 1, score + best, nnx.state(model, nnx.Cache)

    ids = jax.ShapeDtypeStruct((B, 1), jnp.int32)
    return jax.jit(step, donate_argnums=1), (params, cache, rest, ids, ids, jax.ShapeDtypeStruct((B,), jnp.float32))
