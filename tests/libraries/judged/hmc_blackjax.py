"""Bayesian logistic regression sampled with blackjax HMC, many chains, in the style of the blackjax tutorials (inference loop by scan)."""

import blackjax, jax, jax.numpy as jnp

C, N, D = 256, 8192, 512


def make():
    def step(state, key, X, y):
        def logdensity(params):
            logits = X @ params["w"] + params["b"]
            return -jnp.sum(jnp.logaddexp(0.0, jnp.where(y == 1, -logits, logits))) - 0.5 * jnp.sum(params["w"] ** 2)

        kernel = blackjax.hmc(logdensity, step_size=1e-3, inverse_mass_matrix=jnp.ones(D + 1), num_integration_steps=8)
        key, sub = jax.random.split(key)

        def one(state, k):
            return kernel.step(k, state)

        state, info = jax.vmap(one)(state, jax.random.split(sub, C))
        return state, key, info.acceptance_rate

    pos = {"w": jnp.zeros((C, D)), "b": jnp.zeros((C,))}
    from blackjax.mcmc.hmc import HMCState

    st = HMCState(pos, jnp.zeros((C,)), jax.tree.map(jnp.zeros_like, pos))
    return jax.jit(step, donate_argnums=(0, 1)), (
        st,
        jax.random.PRNGKey(0),
        jax.ShapeDtypeStruct((N, D), jnp.float32),
        jax.ShapeDtypeStruct((N,), jnp.int32),
    )
