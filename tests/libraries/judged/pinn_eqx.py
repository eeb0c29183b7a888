"""Physics-informed network for Burgers' equation (second derivatives inside the loss), equinox MLP, optax adam."""

import equinox as eqx, jax, jax.numpy as jnp, optax

B = 16384


def make():
    model = eqx.filter_eval_shape(
        lambda k: eqx.nn.MLP(2, "scalar", 256, 4, activation=jnp.tanh, key=k), jax.random.PRNGKey(0)
    )
    params, static = eqx.partition(model, lambda x: hasattr(x, "shape"))
    optim = optax.adam(1e-3)
    opt = jax.eval_shape(optim.init, params)

    def residual(m, x, t):
        u = lambda x, t: m(jnp.stack([x, t]))
        u_t = jax.grad(u, 1)(x, t)
        u_x = jax.grad(u, 0)(x, t)
        u_xx = jax.grad(jax.grad(u, 0), 0)(x, t)
        return u_t + u(x, t) * u_x - 0.01 * u_xx

    def loss(params, pts, ic_x, ic_u):
        m = eqx.combine(params, static)
        r = jax.vmap(lambda p: residual(m, p[0], p[1]))(pts)
        i = jax.vmap(lambda x: m(jnp.stack([x, 0.0])))(ic_x)
        return jnp.mean(r**2) + jnp.mean((i - ic_u) ** 2)

    def step(params, opt_state, key):
        key, k1, k2 = jax.random.split(key, 3)
        pts = jax.random.uniform(k1, (B, 2))
        ic = jax.random.uniform(k2, (1024,))
        l, g = jax.value_and_grad(loss)(params, pts, ic, -jnp.sin(jnp.pi * ic))
        u, opt_state = optim.update(g, opt_state, params)
        return eqx.apply_updates(params, u), opt_state, key, l

    return jax.jit(step, donate_argnums=(0, 1, 2)), (params, opt, jax.random.PRNGKey(0))
