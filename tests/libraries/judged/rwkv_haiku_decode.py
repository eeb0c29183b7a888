"""A step of an RWKV-like model in Haiku, its recurrent state in hk.get_state: the last hidden values (token shift) and a matrix of
outer products of keys and values for each head. Reads like attention, but has no softmax and no positions."""

import haiku as hk, jax, jax.numpy as jnp

V, D, H, L, B = 50277, 1024, 16, 4, 128
HD = D // H


def mix(x, last, name):
    ratio = hk.get_parameter(name, (D,), init=jnp.ones)
    return x * ratio + last * (1 - ratio)


class TimeMix(hk.Module):
    def __call__(self, x):
        last = hk.get_state("last", (B, D), init=jnp.zeros)
        wkv = hk.get_state("wkv", (B, H, HD, HD), init=jnp.zeros)
        hk.set_state("last", x)
        r, k, v, g = (
            hk.Linear(D, with_bias=False, name=n)(mix(x, last, f"mix_{n}")).reshape(B, H, HD) for n in ("r", "k", "v", "g")
        )
        decay = jnp.exp(-jnp.exp(hk.get_parameter("decay", (H, HD), init=jnp.zeros)))
        bonus = hk.get_parameter("bonus", (H, HD), init=jnp.zeros)
        kv = k[..., :, None] * v[..., None, :]
        y = jnp.einsum("bhi,bhij->bhj", r, wkv + bonus[..., None] * kv)
        hk.set_state("wkv", wkv * decay[..., None] + kv)
        y = hk.GroupNorm(H, axis=-1, create_scale=True, create_offset=True)(y.reshape(B, D))
        return hk.Linear(D, with_bias=False, name="o")(y * jax.nn.silu(g.reshape(B, D)))


class ChannelMix(hk.Module):
    def __call__(self, x):
        last = hk.get_state("last", (B, D), init=jnp.zeros)
        hk.set_state("last", x)
        k = jnp.square(jax.nn.relu(hk.Linear(4 * D, with_bias=False, name="k")(mix(x, last, "mix_k"))))
        r = jax.nn.sigmoid(hk.Linear(D, with_bias=False, name="r")(mix(x, last, "mix_r")))
        return r * hk.Linear(D, with_bias=False, name="v")(k)


def model(tokens):
    x = hk.Embed(V, D, name="emb")(tokens)
    for i in range(L):
        x = x + TimeMix(name=f"att_{i}")(hk.LayerNorm(-1, True, True, name=f"ln1_{i}")(x))
        x = x + ChannelMix(name=f"ffn_{i}")(hk.LayerNorm(-1, True, True, name=f"ln2_{i}")(x))
    return hk.Linear(V, with_bias=False, name="head")(hk.LayerNorm(-1, True, True, name="ln_out")(x))


def make():
    net = hk.without_apply_rng(hk.transform_with_state(model))
    tokens = jax.ShapeDtypeStruct((B,), jnp.int32)
    params, state = jax.eval_shape(net.init, jax.random.PRNGKey(0), tokens)

    def step(params, state, tokens, top_p, key):
        logits, state = net.apply(params, state, tokens)
        probs = jax.nn.softmax(logits)
        ordered = -jnp.sort(-probs, axis=-1)
        cutoff = jnp.take_along_axis(ordered, jnp.sum(jnp.cumsum(ordered, -1) < top_p[:, None], -1)[:, None], -1)
        return jax.random.categorical(key, jnp.where(probs < cutoff, -jnp.inf, logits)), state

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return jax.jit(step, donate_argnums=1), (params, state, tokens, jax.ShapeDtypeStruct((B,), jnp.float32), key)
