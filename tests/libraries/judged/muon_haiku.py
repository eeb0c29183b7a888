"""Haiku MLP language classifier trained with optax.contrib.muon."""
import haiku as hk, jax, jax.numpy as jnp, optax
from optax import contrib
B, D = 512, 1024
def make():
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([D, D, D, 64], name="mlp")(x)))
    tx = contrib.muon(0.02); x = jax.ShapeDtypeStruct((B, D), jnp.float32)
    p = jax.eval_shape(net.init, jax.random.PRNGKey(0), x)
    def step(p, o, x, y):
        def loss(p): return optax.softmax_cross_entropy_with_integer_labels(net.apply(p, x), y).mean()
        l, g = jax.value_and_grad(loss)(p); u, o = tx.update(g, o, p); return optax.apply_updates(p, u), o, l
    return jax.jit(step, donate_argnums=(0, 1)), (p, jax.eval_shape(tx.init, p), x, jax.ShapeDtypeStruct((B,), jnp.int32))
