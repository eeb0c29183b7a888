"""Mixture of experts with ragged_dot in flax nnx; nnx.split/merge train step with nnx.Optimizer as in the flax performance guide."""

import jax, jax.numpy as jnp, optax
from flax import nnx

D, F, E, L, B, T = 512, 1024, 8, 2, 8, 512


class MoE(nnx.Module):
    def __init__(self, rngs):
        self.router = nnx.Linear(D, E, use_bias=False, rngs=rngs)
        init = nnx.initializers.lecun_normal()
        self.w_in = nnx.Param(init(rngs.params(), (E, D, F)))
        self.w_out = nnx.Param(init(rngs.params(), (E, F, D)))

    def __call__(self, x):
        b, t, d = x.shape
        h = x.reshape(-1, d)
        p = jax.nn.softmax(self.router(h))
        w, idx = jax.lax.top_k(p, 1)
        e = idx[:, 0]
        order = jnp.argsort(e)
        sizes = jnp.bincount(e, length=E).astype(jnp.int32)
        hs = h[order]
        y = jax.lax.ragged_dot(jax.nn.gelu(jax.lax.ragged_dot(hs, self.w_in[...], sizes)), self.w_out[...], sizes)
        y = jnp.zeros_like(h).at[order].set(y) * w
        return y.reshape(b, t, d)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(4096, D, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(D, rngs=rngs) for _ in range(L)])
        self.moes = nnx.List([MoE(rngs) for _ in range(L)])
        self.head = nnx.Linear(D, 4096, rngs=rngs)

    def __call__(self, t):
        x = self.embed(t)
        for n, m in zip(self.norms, self.moes):
            x = x + m(n(x))
        return self.head(x)


def make():
    def build():
        m = Model(nnx.Rngs(0))
        o = nnx.Optimizer(m, optax.adamw(1e-3), wrt=nnx.Param)
        return nnx.split((m, o))

    graphdef, state = nnx.eval_shape(
        lambda: (lambda m: nnx.split((m, nnx.Optimizer(m, optax.adamw(1e-3), wrt=nnx.Param))))(Model(nnx.Rngs(0)))
    )

    def step(state, tokens, labels):
        model, opt = nnx.merge(graphdef, state)

        def loss(m):
            return optax.softmax_cross_entropy_with_integer_labels(m(tokens), labels).mean()

        l, g = nnx.value_and_grad(loss)(model)
        opt.update(model, g)
        return nnx.state((model, opt)), l

    s = jax.ShapeDtypeStruct((B, T), jnp.int32)
    return jax.jit(step, donate_argnums=0), (state, s, s)
