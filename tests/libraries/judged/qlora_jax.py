"""LoRA on a frozen base in 8-bit integers with scales for each column, plain JAX: layers stacked and scanned under checkpoint;
only the low-rank pairs have gradients and Adam moments."""

import jax, jax.numpy as jnp
from jax import lax

V, D, H, F, L, R, B, T = 32000, 1024, 16, 4096, 8, 16, 8, 512
bf16 = jnp.bfloat16
SIZES = {"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D), "up": (D, F), "down": (F, D)}


def norm(x, g):
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)).astype(bf16) * g


def project(x, base, lora, name):
    w = base[name]["int8"].astype(bf16) * base[name]["scale"]
    y = x @ w
    if name in lora:
        y = y + (x @ lora[name]["a"].astype(bf16)) @ lora[name]["b"].astype(bf16) * (32 / R)
    return y


def block(x, layer):
    base, lora = layer
    h = norm(x, base["norm1"])
    q, k, v = (project(h, base, lora, n).reshape(B, T, H, D // H) for n in "qkv")
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * (D // H) ** -0.5
    s = jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, -1e9)
    a = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s).astype(bf16), v).reshape(B, T, D)
    x = x + project(a, base, lora, "o")
    h = norm(x, base["norm2"])
    return x + project(jax.nn.gelu(project(h, base, lora, "up")), base, lora, "down"), None


def make():
    def loss_fn(lora, base, tokens):
        x = base["embed"][tokens]
        x, _ = lax.scan(jax.checkpoint(block), x, (base["layers"], lora))
        logits = (norm(x, base["norm"]) @ base["embed"].T).astype(jnp.float32)[:, :-1]
        label = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - label)

    def step(lora, moments, count, base, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(lora, base, tokens)
        count = count + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments["m"], grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments["v"], grads)
        lr = 1e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        lora = jax.tree.map(lambda p, m, v: p - lr * m / (jnp.sqrt(v) + 1e-8), lora, m, v)
        return lora, {"m": m, "v": v}, count, loss

    s = lambda *shape, dtype=bf16: jax.ShapeDtypeStruct(shape, dtype)
    layers = {n: {"int8": s(L, i, o, dtype=jnp.int8), "scale": s(L, 1, o)} for n, (i, o) in SIZES.items()}
    base = {"embed": s(V, D), "norm": s(D), "layers": {**layers, "norm1": s(L, D), "norm2": s(L, D)}}
    f32 = jnp.float32
    lora = {n: {"a": s(L, SIZES[n][0], R, dtype=f32), "b": s(L, R, SIZES[n][1], dtype=f32)} for n in ("q", "v", "up", "down")}
    count = s(dtype=f32)
    return jax.jit(step, donate_argnums=(0, 1)), (lora, {"m": lora, "v": lora}, count, base, s(B, T, dtype=jnp.int32))
