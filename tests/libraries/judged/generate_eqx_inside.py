"""Whole generation in one jit, Equinox: the cache is made of zeros inside, filled by a scan over the prompt token by token, and
carried by a fori_loop over new tokens. No cache comes in, none goes out."""

import equinox as eqx, jax, jax.numpy as jnp

V, D, H, L, B, P, S = 32000, 768, 12, 4, 32, 64, 1024


class Block(eqx.Module):
    ln1: eqx.nn.LayerNorm
    qkv: eqx.nn.Linear
    proj: eqx.nn.Linear
    ln2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.ln1, self.ln2 = eqx.nn.LayerNorm(D), eqx.nn.LayerNorm(D)
        self.qkv, self.proj = eqx.nn.Linear(D, 3 * D, key=a), eqx.nn.Linear(D, D, key=b)
        self.mlp = eqx.nn.MLP(D, D, 4 * D, 1, jax.nn.gelu, key=c)

    def __call__(self, x, cache, at):
        q, k, v = jnp.split(jax.vmap(self.qkv)(jax.vmap(self.ln1)(x)), 3, -1)
        k_cache = cache[0].at[:, at].set(k.reshape(B, H, -1))
        v_cache = cache[1].at[:, at].set(v.reshape(B, H, -1))
        scores = jnp.einsum("bhd,bshd->bhs", q.reshape(B, H, -1), k_cache) * (D // H) ** -0.5
        weights = jax.nn.softmax(jnp.where(jnp.arange(S) <= at, scores, -jnp.inf))
        x = x + jax.vmap(self.proj)(jnp.einsum("bhs,bshd->bhd", weights, v_cache).reshape(B, D))
        return x + jax.vmap(self.mlp)(jax.vmap(self.ln2)(x)), (k_cache, v_cache)


class GPT(eqx.Module):
    wte: eqx.nn.Embedding
    wpe: eqx.nn.Embedding
    blocks: list[Block]
    ln: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        ks = jax.random.split(key, L + 3)
        self.wte, self.wpe = eqx.nn.Embedding(V, D, key=ks[0]), eqx.nn.Embedding(S, D, key=ks[1])
        self.blocks = [Block(k) for k in ks[3:]]
        self.ln, self.head = eqx.nn.LayerNorm(D), eqx.nn.Linear(D, V, use_bias=False, key=ks[2])

    def __call__(self, tokens, cache, at):
        x = jax.vmap(self.wte)(tokens) + self.wpe(at)
        new = []
        for block, old in zip(self.blocks, cache):
            x, one = block(x, old, at)
            new.append(one)
        return jax.vmap(self.head)(jax.vmap(self.ln)(x)), new


def make():
    params, static = eqx.partition(eqx.filter_eval_shape(GPT, jax.random.PRNGKey(0)), lambda x: hasattr(x, "shape"))

    def generate(params, prompt, key):
        model = eqx.combine(params, static)
        cache = [(jnp.zeros((B, S, H, D // H)), jnp.zeros((B, S, H, D // H))) for _ in range(L)]

        def read(carry, token):
            cache, at, _ = carry
            logits, cache = model(token, cache, at)
            return (cache, at + 1, logits), None

        (cache, _, logits), _ = jax.lax.scan(read, (cache, 0, jnp.zeros((B, V))), prompt.T)

        def body(i, carry):
            cache, logits, out, key = carry
            key, sub = jax.random.split(key)
            token = jax.random.categorical(sub, logits / 0.8)
            logits, cache = model(token, cache, i)
            return cache, logits, out.at[:, i].set(token), key

        out = jnp.zeros((B, S), jnp.int32).at[:, :P].set(prompt)
        return jax.lax.fori_loop(P, S, body, (cache, logits, out, key))[2]

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return jax.jit(generate), (params, jax.ShapeDtypeStruct((B, P), jnp.int32), key)
