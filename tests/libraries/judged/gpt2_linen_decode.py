"""GPT-2 decode step as transformers' Flax models wrote it: `past_key_values` holds cached_key, cached_value, cache_index."""

import flax.linen as nn, jax, jax.numpy as jnp
from flax.linen import combine_masks
from jax import lax

V, D, H, L, B, S = 50257, 768, 12, 4, 16, 1024


class SelfAttention(nn.Module):
    @nn.compact
    def __call__(self, hidden, attention_mask):
        q, k, v = jnp.split(nn.Dense(3 * D, name="c_attn")(hidden), 3, axis=-1)
        q, k, v = (x.reshape(*x.shape[:2], H, D // H) for x in (q, k, v))
        ready = self.has_variable("cache", "cached_key")
        cached_key = self.variable("cache", "cached_key", jnp.zeros, k.shape, k.dtype)
        cached_value = self.variable("cache", "cached_value", jnp.zeros, v.shape, v.dtype)
        cache_index = self.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
        mask = attention_mask[:, None, None, :]
        if ready:
            at = cache_index.value
            k = lax.dynamic_update_slice(cached_key.value, k, (0, at, 0, 0))
            v = lax.dynamic_update_slice(cached_value.value, v, (0, at, 0, 0))
            cached_key.value, cached_value.value = k, v
            cache_index.value = at + q.shape[1]
            seen = jnp.broadcast_to(jnp.arange(S) < at + q.shape[1], (q.shape[0], 1, q.shape[1], S))
            mask = combine_masks(seen, mask)
        bias = lax.select(mask > 0, jnp.zeros(mask.shape), jnp.full(mask.shape, -1e9))
        weights = nn.dot_product_attention_weights(q, k, bias=bias)
        out = jnp.einsum("...hqk,...khd->...qhd", weights, v).reshape(hidden.shape)
        return nn.Dense(D, name="c_proj")(out)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(D, name="c_proj")(nn.gelu(nn.Dense(4 * D, name="c_fc")(x)))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        x = x + SelfAttention(name="attn")(nn.LayerNorm(name="ln_1")(x), mask)
        return x + MLP(name="mlp")(nn.LayerNorm(name="ln_2")(x))


class GPT2(nn.Module):
    @nn.compact
    def __call__(self, input_ids, attention_mask, position_ids):
        wte = nn.Embed(V, D, name="wte")
        x = wte(input_ids) + nn.Embed(S, D, name="wpe")(position_ids)
        for i in range(L):
            x = Block(name=f"h_{i}")(x, attention_mask)
        return wte.attend(nn.LayerNorm(name="ln_f")(x))


def make():
    model = GPT2()
    ones = jnp.ones((B, S), jnp.int32)
    variables = jax.eval_shape(lambda key: model.init(key, ones, ones, ones), jax.random.PRNGKey(0))

    def step(params, input_ids, attention_mask, position_ids, past_key_values):
        logits, new = model.apply(
            {"params": params, "cache": past_key_values}, input_ids, attention_mask, position_ids, mutable=["cache"]
        )
        next_ids = jnp.argmax(logits[:, -1], axis=-1)
        return {"next_ids": next_ids[:, None], "position_ids": position_ids + 1, "past_key_values": new["cache"]}

    ids = lambda n: jax.ShapeDtypeStruct((B, n), jnp.int32)
    return jax.jit(step, donate_argnums=4), (variables["params"], ids(1), ids(S), ids(1), variables["cache"])
