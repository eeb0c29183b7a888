"""Gaussian-process hyper-parameters by gradient descent on the marginal likelihood, in the style of the tinygp tutorials."""
import jax, jax.numpy as jnp, optax
from tinygp import GaussianProcess, kernels
N = 1024
def make():
    def build_gp(theta, X):
        k = jnp.exp(theta["log_amp"]) * kernels.ExpSquared(jnp.exp(theta["log_scale"])) + jnp.exp(theta["log_amp2"]) * kernels.Matern32(jnp.exp(theta["log_scale2"]))
        return GaussianProcess(k, X, diag=jnp.exp(theta["log_diag"]), mean=theta["mean"])
    tx = optax.adam(1e-2); s = jax.ShapeDtypeStruct
    theta = {n: s((), jnp.float32) for n in ("log_amp", "log_scale", "log_amp2", "log_scale2", "log_diag", "mean")}
    def step(theta, opt_state, X, y):
        l, g = jax.value_and_grad(lambda t: -build_gp(t, X).log_probability(y))(theta)
        u, opt_state = tx.update(g, opt_state); return optax.apply_updates(theta, u), opt_state, l
    return jax.jit(step), (theta, jax.eval_shape(tx.init, theta), s((N,), jnp.float32), s((N,), jnp.float32))
