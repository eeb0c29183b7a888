"""Deep equilibrium layer: optimistix.fixed_point with implicit differentiation, equinox modules, optax adam."""
import equinox as eqx, jax, jax.numpy as jnp, optax, optimistix as optx
B, D = 4096, 256
class DEQ(eqx.Module):
    enc: eqx.nn.Linear; cell: eqx.nn.Linear; dec: eqx.nn.Linear
    def __init__(self, k):
        a, b, c = jax.random.split(k, 3); self.enc = eqx.nn.Linear(784, D, key=a); self.cell = eqx.nn.Linear(D, D, key=b); self.dec = eqx.nn.Linear(D, 10, key=c)
    def __call__(self, x):
        u = jax.vmap(self.enc)(x)
        def f(z, args):
            cell, u = args; return jnp.tanh(jax.vmap(cell)(z) * 0.5 + u)
        sol = optx.fixed_point(f, optx.FixedPointIteration(1e-4, 1e-4), jnp.zeros((x.shape[0], D)), args=(self.cell, u), max_steps=20, throw=False,
                               adjoint=optx.RecursiveCheckpointAdjoint())
        return jax.vmap(self.dec)(sol.value)
def make():
    m = eqx.filter_eval_shape(DEQ, jax.random.PRNGKey(0)); params, static = eqx.partition(m, lambda x: hasattr(x, "shape"))
    tx = optax.adam(1e-3)
    def step(params, opt_state, x, y):
        def loss(p): return optax.softmax_cross_entropy_with_integer_labels(eqx.combine(p, static)(x), y).mean()
        l, g = jax.value_and_grad(loss)(params); u, opt_state = tx.update(g, opt_state); return eqx.apply_updates(params, u), opt_state, l
    return jax.jit(step, donate_argnums=(0, 1)), (params, jax.eval_shape(tx.init, params), jax.ShapeDtypeStruct((B, 784), jnp.float32), jax.ShapeDtypeStruct((B,), jnp.int32))
