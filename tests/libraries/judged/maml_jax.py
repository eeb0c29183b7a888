"""MAML (second order) for regression on tasks, plain JAX MLP + optax outer optimizer, in the style of the well-known JAX MAML posts."""

import jax, jax.numpy as jnp, optax

T, K, D, H = 32, 256, 64, 512


def make():
    sizes = [(D, H), (H, H), (H, 1)]
    params = [
        {"w": jax.ShapeDtypeStruct(s, jnp.float32), "b": jax.ShapeDtypeStruct((s[1],), jnp.float32)} for s in sizes
    ]
    tx = optax.adam(1e-3)

    def net(p, x):
        for l in p[:-1]:
            x = jnp.tanh(x @ l["w"] + l["b"])
        return x @ p[-1]["w"] + p[-1]["b"]

    def loss(p, x, y):
        return jnp.mean((net(p, x) - y) ** 2)

    def inner(p, x, y, alpha):
        for _ in range(2):
            g = jax.grad(loss)(p, x, y)
            p = jax.tree.map(lambda a, b: a - alpha * b, p, g)
        return p

    def maml(p, b, alpha):
        return jnp.mean(
            jax.vmap(lambda xs, ys, xq, yq: loss(inner(p, xs, ys, alpha), xq, yq))(b["xs"], b["ys"], b["xq"], b["yq"])
        )

    def step(params, opt_state, batch, alpha):
        l, g = jax.value_and_grad(maml)(params, batch, alpha)
        u, opt_state = tx.update(g, opt_state)
        return optax.apply_updates(params, u), opt_state, l

    s = jax.ShapeDtypeStruct
    b = {k: s((T, K, D if k[0] == "x" else 1), jnp.float32) for k in ("xs", "ys", "xq", "yq")}
    return jax.jit(step, donate_argnums=(0, 1)), (params, jax.eval_shape(tx.init, params), b, s((), jnp.float32))
