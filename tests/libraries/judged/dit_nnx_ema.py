"""Diffusion Transformer in NNX: adaLN blocks under remat, gradients accumulated over microbatches by lax.scan, EMA of weights."""

import jax, jax.numpy as jnp, optax
from flax import nnx

D, H, L, B, MICRO, IMG, CH, PATCH, CLASSES = 512, 8, 4, 64, 4, 32, 4, 2, 1000
N = (IMG // PATCH) ** 2
bf16 = jnp.bfloat16


class Block(nnx.Module):
    def __init__(self, rngs):
        kw = dict(dtype=bf16, rngs=rngs)
        self.norm1, self.norm2 = (nnx.LayerNorm(D, use_bias=False, use_scale=False, **kw) for _ in range(2))
        self.attn = nnx.MultiHeadAttention(H, D, decode=False, **kw)
        self.mlp_in, self.mlp_out = nnx.Linear(D, 4 * D, **kw), nnx.Linear(4 * D, D, **kw)
        self.ada = nnx.Linear(D, 6 * D, **kw)

    def __call__(self, x, c):
        s1, b1, g1, s2, b2, g2 = jnp.split(self.ada(nnx.silu(c))[:, None], 6, -1)
        x = x + g1 * self.attn(self.norm1(x) * (1 + s1) + b1)
        return x + g2 * self.mlp_out(nnx.gelu(self.mlp_in(self.norm2(x) * (1 + s2) + b2)))


class DiT(nnx.Module):
    def __init__(self, rngs):
        kw = dict(dtype=bf16, rngs=rngs)
        self.patch = nnx.Linear(PATCH * PATCH * CH, D, **kw)
        self.pos = nnx.Param(jnp.zeros((N, D)))
        self.time1, self.time2 = nnx.Linear(256, D, **kw), nnx.Linear(D, D, **kw)
        self.label = nnx.Embed(CLASSES + 1, D, **kw)
        self.blocks = nnx.List([Block(rngs) for _ in range(L)])
        self.out = nnx.Linear(D, PATCH * PATCH * CH, **kw)

    def __call__(self, x, t, y):
        b = x.shape[0]
        x = x.reshape(b, IMG // PATCH, PATCH, IMG // PATCH, PATCH, CH).transpose(0, 1, 3, 2, 4, 5).reshape(b, N, -1)
        x = self.patch(x) + self.pos[...].astype(bf16)
        angle = t[:, None] * jnp.exp(-jnp.log(10000.0) * jnp.arange(128) / 128)
        c = self.time2(nnx.silu(self.time1(jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)))) + self.label(y)
        for block in self.blocks:
            x = nnx.remat(lambda m, x, c: m(x, c))(block, x, c)
        x = self.out(x).reshape(b, IMG // PATCH, IMG // PATCH, PATCH, PATCH, CH)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, IMG, IMG, CH)


def make():
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))
    graphdef, params = nnx.eval_shape(lambda: nnx.split(DiT(nnx.Rngs(0)), nnx.Param))
    opt_state = jax.eval_shape(tx.init, params)

    def loss_fn(params, latents, labels, key):
        k1, k2, k3 = jax.random.split(key, 3)
        t = jax.random.uniform(k1, (latents.shape[0],))
        noise = jax.random.normal(k2, latents.shape)
        labels = jnp.where(jax.random.uniform(k3, labels.shape) < 0.1, CLASSES, labels)
        mixed = (1 - t)[:, None, None, None] * latents + t[:, None, None, None] * noise
        velocity = nnx.merge(graphdef, params)(mixed, t * 1000, labels)
        return jnp.mean((velocity.astype(jnp.float32) - (noise - latents)) ** 2)

    def train_step(train, ema, batch):
        params, opt_state, key = train["params"], train["opt_state"], train["key"]
        key, sub = jax.random.split(key)
        micro = jax.tree.map(lambda x: x.reshape(MICRO, B // MICRO, *x.shape[1:]), batch)

        def body(carry, xs):
            total, grads = carry
            one, k = xs
            loss, g = jax.value_and_grad(loss_fn)(params, one["latents"], one["labels"], k)
            return (total + loss, jax.tree.map(jnp.add, grads, g)), None

        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (loss, grads), _ = jax.lax.scan(body, start, (micro, jax.random.split(sub, MICRO)))
        grads = jax.tree.map(lambda g: g / MICRO, grads)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        ema = jax.tree.map(lambda e, p: 0.9999 * e + 0.0001 * p, ema, params)
        return {"params": params, "opt_state": opt_state, "key": key}, ema, loss / MICRO

    batch = {
        "latents": jax.ShapeDtypeStruct((B, IMG, IMG, CH), jnp.float32),
        "labels": jax.ShapeDtypeStruct((B,), jnp.int32),
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    train = {"params": params, "opt_state": opt_state, "key": key}
    return jax.jit(train_step, donate_argnums=(0, 1)), (train, params, batch)
