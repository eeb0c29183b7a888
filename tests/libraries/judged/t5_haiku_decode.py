"""A step of a T5-like decoder in Haiku: self-attention writes its cache, cross-attention reads keys and values of the encoder's
output that a prefill made; relative position bias; one dict of both caches goes in and out."""

import haiku as hk, jax, jax.numpy as jnp

V, D, H, HD, F, L, B, S, T = 32128, 768, 12, 64, 3072, 4, 32, 512, 1024


def rms(x, name):
    scale = hk.get_parameter(f"{name}_scale", (D,), init=jnp.ones)
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def linear(n, name):
    return hk.Linear(n, with_bias=False, name=name)


class SelfAttention(hk.Module):
    def __call__(self, x, cache, step, bias):
        heads = lambda name: linear(H * HD, name)(x).reshape(B, 1, H, HD)
        q, k, v = heads("q"), heads("k"), heads("v")
        hot = jax.nn.one_hot(step, S)[None, :, None, None]
        keys = cache["key"] * (1 - hot) + k * hot
        values = cache["value"] * (1 - hot) + v * hot
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys) + bias
        scores = jnp.where(jnp.arange(S) <= step, scores, -1e9)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)
        return linear(D, "o")(out.reshape(B, 1, H * HD)), {"key": keys, "value": values}


class CrossAttention(hk.Module):
    def __call__(self, x, cache, mask):
        q = linear(H * HD, "q")(x).reshape(B, 1, H, HD)
        scores = jnp.einsum("bqhd,bhdk->bhqk", q, cache["key"])
        scores = jnp.where(mask[:, None, None, :] > 0, scores, -1e9)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), cache["value"])
        return linear(D, "o")(out.reshape(B, 1, H * HD))


class DecoderLayer(hk.Module):
    def __call__(self, x, cache, step, bias, mask):
        y, own = SelfAttention(name="self_attn")(rms(x, "ln1"), cache["self"], step, bias)
        x = x + y
        x = x + CrossAttention(name="cross_attn")(rms(x, "ln2"), cache["cross"], mask)
        x = x + linear(D, "wo")(jax.nn.relu(linear(F, "wi")(rms(x, "ln3"))))
        return x, {"self": own, "cross": cache["cross"]}


def decoder(token, caches, step, mask):
    embed = hk.Embed(V, D, name="shared")
    x = embed(token)
    table = hk.get_parameter("relative_bias", (32, H), init=jnp.zeros)
    distance = jnp.clip(step - jnp.arange(S), 0, 31)
    bias = table[distance].T[None, :, None, :]
    new = []
    for i in range(L):
        x, cache = DecoderLayer(name=f"layer_{i}")(x, caches[i], step, bias, mask)
        new.append(cache)
    return linear(V, "lm_head")(rms(x, "final")), new


def make():
    net = hk.without_apply_rng(hk.transform(decoder))
    s = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
    caches = [
        {"self": {"key": s(B, S, H, HD), "value": s(B, S, H, HD)}, "cross": {"key": s(B, H, HD, T), "value": s(B, T, H, HD)}}
        for _ in range(L)
    ]
    token, step_no, mask = s(B, 1, dtype=jnp.int32), s(dtype=jnp.int32), s(B, T, dtype=jnp.int32)
    params = jax.eval_shape(net.init, jax.random.PRNGKey(0), token, caches, step_no, mask)

    def step(params, token, caches, step_no, encoder_mask):
        logits, caches = net.apply(params, token, caches, step_no, encoder_mask)
        return jnp.argmax(logits[:, -1:], -1), caches, step_no + 1

    return jax.jit(step, donate_argnums=2), (params, token, caches, step_no, mask)
