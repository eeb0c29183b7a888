"""optax.lbfgs with its zoom linesearch, value_and_grad_from_state, multinomial logistic regression, full batch."""
import jax, jax.numpy as jnp, optax
N, D, C = 8192, 1024, 100
def make():
    tx = optax.lbfgs(memory_size=5); s = jax.ShapeDtypeStruct
    p = {"W": s((D, C), jnp.float32), "b": s((C,), jnp.float32)}
    def step(params, opt_state, X, y):
        def f(p): return optax.softmax_cross_entropy_with_integer_labels(X @ p["W"] + p["b"], y).mean() + 1e-4 * jnp.sum(p["W"] ** 2)
        v, g = optax.value_and_grad_from_state(f)(params, state=opt_state)
        u, opt_state = tx.update(g, opt_state, params, value=v, grad=g, value_fn=f)
        return optax.apply_updates(params, u), opt_state, v
    return jax.jit(step, donate_argnums=(0, 1)), (p, jax.eval_shape(tx.init, p), s((N, D), jnp.float32), s((N,), jnp.int32))
