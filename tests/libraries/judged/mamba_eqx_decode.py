"""One token of a Mamba-like state-space model, Equinox modules under vmap; each layer carries a conv window and an SSM state."""

import equinox as eqx, jax, jax.numpy as jnp

V, D, E, N, R, K, L, B = 50280, 1024, 2048, 16, 64, 4, 6, 256


class MambaBlock(eqx.Module):
    norm: eqx.nn.RMSNorm
    in_proj: eqx.nn.Linear
    conv_weight: jax.Array
    conv_bias: jax.Array
    x_proj: eqx.nn.Linear
    dt_proj: eqx.nn.Linear
    A_log: jax.Array
    D: jax.Array
    out_proj: eqx.nn.Linear

    def __init__(self, key):
        ks = jax.random.split(key, 5)
        self.norm = eqx.nn.RMSNorm(D, use_bias=False)
        self.in_proj = eqx.nn.Linear(D, 2 * E, use_bias=False, key=ks[0])
        self.conv_weight = jax.random.normal(ks[1], (E, K)) / K
        self.conv_bias = jnp.zeros(E)
        self.x_proj = eqx.nn.Linear(E, R + 2 * N, use_bias=False, key=ks[2])
        self.dt_proj = eqx.nn.Linear(R, E, key=ks[3])
        self.A_log = jnp.log(jnp.broadcast_to(jnp.arange(1.0, N + 1), (E, N)))
        self.D = jnp.ones(E)
        self.out_proj = eqx.nn.Linear(E, D, use_bias=False, key=ks[4])

    def __call__(self, x, state):
        window, h = state
        u, z = jnp.split(self.in_proj(self.norm(x)), 2)
        window = jnp.concatenate([window[:, 1:], u[:, None]], axis=1)
        u = jax.nn.silu(jnp.sum(window * self.conv_weight, axis=1) + self.conv_bias)
        dt, b, c = jnp.split(self.x_proj(u), [R, R + N])
        dt = jax.nn.softplus(self.dt_proj(dt))
        h = h * jnp.exp(dt[:, None] * -jnp.exp(self.A_log)) + (dt * u)[:, None] * b[None, :]
        y = h @ c + self.D * u
        return x + self.out_proj(y * jax.nn.silu(z)), (window, h)


class Mamba(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[MambaBlock]
    norm: eqx.nn.RMSNorm

    def __init__(self, key):
        ks = jax.random.split(key, L + 1)
        self.embed = eqx.nn.Embedding(V, D, key=ks[0])
        self.blocks = [MambaBlock(k) for k in ks[1:]]
        self.norm = eqx.nn.RMSNorm(D, use_bias=False)

    def __call__(self, token, states):
        x, new = self.embed(token), []
        for block, state in zip(self.blocks, states):
            x, state = block(x, state)
            new.append(state)
        return self.embed.weight @ self.norm(x), new


def make():
    model = eqx.filter_eval_shape(Mamba, jax.random.PRNGKey(0))
    params, static = eqx.partition(model, lambda x: hasattr(x, "shape"))

    def step(params, states, tokens, key):
        logits, states = jax.vmap(eqx.combine(params, static))(tokens, states)
        key, sub = jax.random.split(key)
        return jax.random.categorical(sub, logits), states, key

    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    states = [(s(B, E, K), s(B, E, N)) for _ in range(L)]
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.jit(step, donate_argnums=(1,)), (params, states, jax.ShapeDtypeStruct((B,), jnp.int32), key)
