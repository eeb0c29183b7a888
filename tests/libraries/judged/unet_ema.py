"""DDPM U-Net with EMA in flax linen (in the style of the public JAX DDPM trainers): TrainState with ema_params, rng in the state."""

import flax.linen as nn, jax, jax.numpy as jnp, optax
from flax.training.train_state import TrainState
from typing import Any

B, S = 32, 32


class ResBlock(nn.Module):
    ch: int

    @nn.compact
    def __call__(self, x, emb):
        h = nn.Conv(self.ch, (3, 3), name="conv1")(nn.swish(nn.GroupNorm(8, name="norm1")(x)))
        h = h + nn.Dense(self.ch, name="temb")(nn.swish(emb))[:, None, None]
        h = nn.Conv(self.ch, (3, 3), name="conv2")(nn.swish(nn.GroupNorm(8, name="norm2")(h)))
        if x.shape[-1] != self.ch:
            x = nn.Conv(self.ch, (1, 1), name="skip")(x)
        return x + h


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x, t):
        f = jnp.exp(-jnp.log(1e4) * jnp.arange(64) / 64)
        e = t[:, None] * f
        e = nn.Dense(256, name="time_2")(
            nn.swish(nn.Dense(256, name="time_1")(jnp.concatenate([jnp.sin(e), jnp.cos(e)], -1)))
        )
        h0 = nn.Conv(64, (3, 3), name="conv_in")(x)
        h1 = ResBlock(64, name="down_0")(h0, e)
        h2 = ResBlock(128, name="down_1")(nn.Conv(64, (3, 3), 2, name="downsample")(h1), e)
        m = ResBlock(128, name="mid")(h2, e)
        u = ResBlock(128, name="up_1")(jnp.concatenate([m, h2], -1), e)
        u = jax.image.resize(u, (u.shape[0], S, S, u.shape[-1]), "nearest")
        u = ResBlock(64, name="up_0")(jnp.concatenate([u, h1], -1), e)
        return nn.Conv(3, (3, 3), name="conv_out")(nn.swish(nn.GroupNorm(8, name="norm_out")(u)))


class State(TrainState):
    ema_params: Any = None
    rng: Any = None


def make():
    net = UNet()
    tx = optax.adam(2e-4)

    def init(k):
        p = net.init(k, jnp.zeros((1, S, S, 3)), jnp.zeros((1,)))["params"]
        return State.create(apply_fn=net.apply, params=p, tx=tx, ema_params=p, rng=k)

    def train_step(state, images):
        rng, k1, k2 = jax.random.split(state.rng, 3)
        t = jax.random.randint(k1, (B,), 0, 1000)
        noise = jax.random.normal(k2, images.shape)
        ab = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 1000))[t][:, None, None, None]

        def loss_fn(p):
            eps = state.apply_fn({"params": p}, jnp.sqrt(ab) * images + jnp.sqrt(1 - ab) * noise, t.astype(jnp.float32))
            return jnp.mean((eps - noise) ** 2)

        loss, g = jax.value_and_grad(loss_fn)(state.params)
        state = state.apply_gradients(grads=g)
        return state.replace(rng=rng, ema_params=optax.incremental_update(state.params, state.ema_params, 1e-3)), loss

    return jax.jit(train_step, donate_argnums=0), (
        jax.eval_shape(init, jax.random.PRNGKey(0)),
        jax.ShapeDtypeStruct((B, S, S, 3), jnp.float32),
    )
