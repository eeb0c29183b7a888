"""WGAN with gradient penalty and spectral norm, dm-haiku (hk.transform_with_state, hk.SNParamsTree); one step trains critic and generator."""

import haiku as hk, jax, jax.numpy as jnp, optax
from typing import NamedTuple, Any


class GanState(NamedTuple):
    gen: Any
    disc: Any
    sn_state: Any
    gen_opt: Any
    disc_opt: Any
    key: Any


B, Z = 256, 128


def make():
    def g(z):
        h = hk.Linear(4 * 4 * 256, name="gen_in")(z).reshape(-1, 4, 4, 256)
        for i, f in enumerate((128, 64, 32)):
            h = jax.nn.relu(hk.Conv2DTranspose(f, 4, 2, name=f"gen_up{i}")(h))
        return jnp.tanh(hk.Conv2D(3, 3, name="gen_out")(h))

    def d(x):
        for i, f in enumerate((32, 64, 128)):
            x = jax.nn.leaky_relu(hk.Conv2D(f, 4, 2, name=f"disc_down{i}")(x), 0.2)
        return hk.Linear(1, name="disc_out")(hk.Flatten()(x))[:, 0]

    gen = hk.without_apply_rng(hk.transform(g))
    disc = hk.without_apply_rng(hk.transform(d))
    sn = hk.transform_with_state(lambda p: hk.SNParamsTree(ignore_regex=".*b$", name="sn")(p))
    tg = optax.adam(1e-4, b1=0.0, b2=0.9)
    td = optax.adam(4e-4, b1=0.0, b2=0.9)

    def init(key):
        gp = gen.init(key, jnp.zeros((1, Z)))
        dp = disc.init(key, jnp.zeros((1, 32, 32, 3)))
        _, ss = sn.init(key, dp)
        return GanState(gp, dp, ss, tg.init(gp), td.init(dp), key)

    def step(state, real):
        key, k1, k2, k3 = jax.random.split(state.key, 4)

        def d_loss(dp):
            dpn, ss = sn.apply({}, state.sn_state, None, dp)
            fake = jax.lax.stop_gradient(gen.apply(state.gen, jax.random.normal(k1, (B, Z))))
            eps = jax.random.uniform(k2, (B, 1, 1, 1))
            mix = eps * real + (1 - eps) * fake
            gx = jax.grad(lambda x: disc.apply(dpn, x).sum())(mix)
            gp = jnp.mean((jnp.sqrt(jnp.sum(gx**2, (1, 2, 3)) + 1e-12) - 1) ** 2)
            return disc.apply(dpn, fake).mean() - disc.apply(dpn, real).mean() + 10 * gp, ss

        (dl, ss), dg = jax.value_and_grad(d_loss, has_aux=True)(state.disc)
        u, do = td.update(dg, state.disc_opt)
        disc_p = optax.apply_updates(state.disc, u)

        def g_loss(gp):
            dpn, _ = sn.apply({}, ss, None, disc_p)
            return -disc.apply(dpn, gen.apply(gp, jax.random.normal(k3, (B, Z)))).mean()

        gl, gg = jax.value_and_grad(g_loss)(state.gen)
        u, go = tg.update(gg, state.gen_opt)
        return GanState(optax.apply_updates(state.gen, u), disc_p, ss, go, do, key), (dl, gl)

    return jax.jit(step, donate_argnums=0), (
        jax.eval_shape(init, jax.random.PRNGKey(0)),
        jax.ShapeDtypeStruct((B, 32, 32, 3), jnp.float32),
    )
