"""PPO whose rollout is part of the step, in the style of PureJaxRL's ppo.py (flax linen, TrainState, own vectorised env)."""

import flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from flax.training.train_state import TrainState
from typing import NamedTuple


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x):
        a = nn.tanh(nn.Dense(256, name="actor_1")(x))
        a = nn.tanh(nn.Dense(256, name="actor_2")(a))
        logits = nn.Dense(8, name="actor_out")(a)
        c = nn.tanh(nn.Dense(256, name="critic_1")(x))
        c = nn.tanh(nn.Dense(256, name="critic_2")(c))
        return logits, jnp.squeeze(nn.Dense(1, name="critic_out")(c), -1)


class Transition(NamedTuple):
    done: jnp.ndarray
    action: jnp.ndarray
    value: jnp.ndarray
    reward: jnp.ndarray
    log_prob: jnp.ndarray
    obs: jnp.ndarray


N, T, D, EPOCHS, MB = 1024, 64, 64, 2, 4


def env_step(state, action):
    pos, vel, t = state
    vel = 0.95 * vel + 0.1 * jax.nn.one_hot(action, 8) @ jnp.ones((8, D // 2))
    pos = pos + 0.05 * vel
    t = t + 1
    done = t >= 200
    pos = jnp.where(done[:, None], 0.0, pos)
    return (pos, vel, jnp.where(done, 0, t)), jnp.concatenate([pos, vel], -1), -jnp.sum(pos**2, -1), done


def make():
    net = ActorCritic()
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def init(key):
        ts = TrainState.create(apply_fn=net.apply, params=net.init(key, jnp.zeros((1, D))), tx=tx)
        return ts, (jnp.zeros((N, D // 2)), jnp.zeros((N, D // 2)), jnp.zeros((N,), jnp.int32)), jnp.zeros((N, D)), key

    def _loss(params, tr, gae, targets):
        logits, value = net.apply(params, tr.obs)
        logp = jax.nn.log_softmax(logits)
        lp = jnp.take_along_axis(logp, tr.action[:, None], -1)[:, 0]
        vclip = tr.value + (value - tr.value).clip(-0.2, 0.2)
        vloss = 0.5 * jnp.maximum((value - targets) ** 2, (vclip - targets) ** 2).mean()
        ratio = jnp.exp(lp - tr.log_prob)
        gae = (gae - gae.mean()) / (gae.std() + 1e-8)
        ploss = -jnp.minimum(ratio * gae, jnp.clip(ratio, 0.8, 1.2) * gae).mean()
        ent = -(jnp.exp(logp) * logp).sum(-1).mean()
        return ploss + 0.5 * vloss - 0.01 * ent, (vloss, ploss, ent)

    def update_step(runner_state):
        def _env_step(rs, _):
            ts, env, obs, key = rs
            key, k = jax.random.split(key)
            logits, value = net.apply(ts.params, obs)
            action = jax.random.categorical(k, logits)
            lp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], -1)[:, 0]
            env, nobs, rew, done = env_step(env, action)
            return (ts, env, nobs, key), Transition(done, action, value, rew, lp, obs)

        runner_state, traj = jax.lax.scan(_env_step, runner_state, None, T)
        ts, env, obs, key = runner_state
        _, last_val = net.apply(ts.params, obs)

        def _gae(c, tr):
            gae, nv = c
            delta = tr.reward + 0.99 * nv * (1 - tr.done) - tr.value
            gae = delta + 0.99 * 0.95 * (1 - tr.done) * gae
            return (gae, tr.value), gae

        _, adv = jax.lax.scan(_gae, (jnp.zeros_like(last_val), last_val), traj, reverse=True, unroll=16)
        targets = adv + traj.value

        def _epoch(us, _):
            ts, key = us
            key, k = jax.random.split(key)
            perm = jax.random.permutation(k, N * T)
            batch = jax.tree.map(lambda x: x.reshape((N * T,) + x.shape[2:])[perm], (traj, adv, targets))
            mbs = jax.tree.map(lambda x: x.reshape((MB, -1) + x.shape[1:]), batch)

            def _mb(ts, b):
                (l, aux), g = jax.value_and_grad(_loss, has_aux=True)(ts.params, *b)
                return ts.apply_gradients(grads=g), l

            ts, l = jax.lax.scan(_mb, ts, mbs)
            return (ts, key), l

        (ts, key), losses = jax.lax.scan(_epoch, (ts, key), None, EPOCHS)
        return (ts, env, obs, key), {"loss": losses, "reward": traj.reward}

    rs = jax.eval_shape(init, jax.random.PRNGKey(0))
    return jax.jit(update_step, donate_argnums=0), (rs,)
