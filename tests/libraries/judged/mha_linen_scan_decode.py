"""Flax linen's own MultiHeadDotProductAttention(decode=True) in blocks stacked by nn.scan, bfloat16; not donated."""

import flax.linen as nn, jax, jax.numpy as jnp

V, D, H, L, B, S = 32000, 1024, 16, 6, 32, 1024
bf16 = jnp.bfloat16


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        h = nn.RMSNorm(dtype=bf16, param_dtype=bf16)(x)
        x = x + nn.MultiHeadDotProductAttention(
            H, decode=True, dtype=bf16, param_dtype=bf16, use_bias=False, name="self_attention"
        )(h)
        h = nn.RMSNorm(dtype=bf16, param_dtype=bf16)(x)
        gate = nn.Dense(2816, use_bias=False, dtype=bf16, param_dtype=bf16, name="gate")(h)
        up = nn.Dense(2816, use_bias=False, dtype=bf16, param_dtype=bf16, name="up")(h)
        x = x + nn.Dense(D, use_bias=False, dtype=bf16, param_dtype=bf16, name="down")(nn.silu(gate) * up)
        return x, None


class LM(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(V, D, dtype=bf16, param_dtype=bf16, name="embedder")(tokens)
        layers = nn.scan(
            Block, variable_axes={"params": 0, "cache": 0}, split_rngs={"params": True}, length=L, in_axes=nn.broadcast
        )
        x, _ = layers(name="layers")(x, None)
        x = nn.RMSNorm(dtype=bf16, param_dtype=bf16, name="final_norm")(x)
        return nn.Dense(V, use_bias=False, dtype=bf16, param_dtype=bf16, name="lm_head")(x)


def make():
    model = LM()
    variables = jax.eval_shape(lambda key: model.init(key, jnp.ones((B, S), jnp.int32)), jax.random.PRNGKey(0))

    @jax.jit
    def decode(variables, token, rng):
        logits, updated = model.apply(variables, token, mutable="cache")
        token = jax.random.categorical(rng, logits[:, -1].astype(jnp.float32) / 0.7)[:, None]
        return token, {**variables, **updated}["cache"]

    rng = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return decode, (variables, jax.ShapeDtypeStruct((B, 1), jnp.int32), rng)
