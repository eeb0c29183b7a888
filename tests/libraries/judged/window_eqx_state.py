"""Local and global attention in turns, as Gemma 3 and Mistral: Equinox with eqx.nn.State. A local layer's cache is a window that
moves on by a roll, a global layer's one is written at the position; keys and values lie in one array."""

import equinox as eqx, jax, jax.numpy as jnp

V, D, H, KV, HD, W, S, L, B = 32768, 1024, 8, 4, 128, 512, 4096, 4, 16
bf16 = jnp.bfloat16


class Attention(eqx.Module):
    wq: jax.Array
    wkv: jax.Array
    wo: jax.Array
    cache: eqx.nn.StateIndex
    local: bool = eqx.field(static=True)

    def __init__(self, key, local):
        a, b, c = jax.random.split(key, 3)
        self.wq = jax.random.normal(a, (D, H, HD), bf16)
        self.wkv = jax.random.normal(b, (2, D, KV, HD), bf16)
        self.wo = jax.random.normal(c, (H, HD, D), bf16)
        self.local = local
        self.cache = eqx.nn.StateIndex(jnp.zeros((2, B, KV, W if local else S, HD), bf16))

    def __call__(self, x, position, state):
        kv = jnp.einsum("bd,cdkh->cbkh", x, self.wkv)
        cache = state.get(self.cache)
        if self.local:
            cache = jnp.roll(cache, -1, axis=3).at[:, :, :, -1].set(kv)
            valid = jnp.arange(W) >= W - 1 - position
        else:
            cache = jax.lax.dynamic_update_slice(cache, kv[:, :, :, None], (0, 0, 0, position, 0))
            valid = jnp.arange(S) <= position
        q = jnp.einsum("bd,dnh->bnh", x, self.wq).reshape(B, KV, H // KV, HD)
        scores = jnp.einsum("bkgh,bksh->bkgs", q, cache[0], preferred_element_type=jnp.float32) * HD**-0.5
        weights = jax.nn.softmax(jnp.where(valid, scores, -1e30)).astype(bf16)
        y = jnp.einsum("bkgs,bksh->bkgh", weights, cache[1]).reshape(B, H, HD)
        return jnp.einsum("bnh,nhd->bd", y, self.wo), state.set(self.cache, cache)


class Block(eqx.Module):
    attention: Attention
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    norms: jax.Array

    def __init__(self, key, local):
        a, b, c, d = jax.random.split(key, 4)
        self.attention = Attention(a, local)
        self.gate, self.up = jax.random.normal(b, (D, 4 * D), bf16), jax.random.normal(c, (D, 4 * D), bf16)
        self.down = jax.random.normal(d, (4 * D, D), bf16)
        self.norms = jnp.zeros((2, D), bf16)

    def __call__(self, x, position, state):
        y, state = self.attention(rms(x, self.norms[0]), position, state)
        x = x + y
        h = rms(x, self.norms[1])
        return x + (jax.nn.gelu(h @ self.gate) * (h @ self.up)) @ self.down, state


def rms(x, scale):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)).astype(bf16) * (1 + scale)


class Model(eqx.Module):
    embedding: jax.Array
    blocks: list[Block]
    scale: jax.Array
    position: eqx.nn.StateIndex

    def __init__(self, key):
        ks = jax.random.split(key, L + 1)
        self.embedding = jax.random.normal(ks[0], (V, D), bf16)
        self.blocks = [Block(k, i % 2 == 0) for i, k in enumerate(ks[1:])]
        self.scale = jnp.zeros(D, bf16)
        self.position = eqx.nn.StateIndex(jnp.zeros((), jnp.int32))

    def __call__(self, tokens, state):
        position = state.get(self.position)
        x = self.embedding[tokens]
        for block in self.blocks:
            x, state = block(x, position, state)
        return rms(x, self.scale) @ self.embedding.T, state.set(self.position, position + 1)


def make():
    model, state = eqx.filter_eval_shape(lambda key: eqx.nn.make_with_state(Model)(key), jax.random.PRNGKey(0))
    params, static = eqx.partition(model, lambda x: hasattr(x, "shape"))

    def step(params, state, tokens):
        logits, state = eqx.combine(params, static)(tokens, state)
        return jnp.argmax(logits, -1), state

    return jax.jit(step, donate_argnums=1), (params, state, jax.ShapeDtypeStruct((B,), jnp.int32))
