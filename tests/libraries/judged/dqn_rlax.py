"""DQN learner in the style of rlax/examples/simple_dqn.py and Dopamine (haiku network, rlax loss, periodic target)."""

import haiku as hk, jax, jax.numpy as jnp, optax, rlax
from typing import NamedTuple, Any


class Params(NamedTuple):
    online: Any
    target: Any


class LearnerState(NamedTuple):
    count: Any
    opt_state: Any


class Transition(NamedTuple):
    s_tm1: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    s_t: Any


def make():
    def net(x):
        x = x.astype(jnp.float32) / 255.0
        return hk.Sequential(
            [
                hk.Conv2D(32, 8, 4, padding="VALID", name="conv1"),
                jax.nn.relu,
                hk.Conv2D(64, 4, 2, padding="VALID", name="conv2"),
                jax.nn.relu,
                hk.Conv2D(64, 3, 1, padding="VALID", name="conv3"),
                jax.nn.relu,
                hk.Flatten(),
                hk.Linear(512, name="torso"),
                jax.nn.relu,
                hk.Linear(18, name="head"),
            ],
            name="dqn",
        )(x)

    network = hk.without_apply_rng(hk.transform(net))
    tx = optax.adam(1e-4)
    B = 256

    def init(key):
        p = network.init(key, jnp.zeros((1, 84, 84, 4), jnp.uint8))
        return Params(p, p), LearnerState(jnp.zeros((), jnp.int32), tx.init(p))

    def loss_fn(online, target, t):
        q_tm1 = network.apply(online, t.s_tm1)
        q_t_val = network.apply(target, t.s_t)
        q_t_select = network.apply(online, t.s_t)
        td = jax.vmap(rlax.double_q_learning)(q_tm1, t.a_tm1, t.r_t, t.discount_t, q_t_val, q_t_select)
        return jnp.mean(rlax.l2_loss(td))

    def learner_step(params, learner_state, data):
        target = optax.periodic_update(params.online, params.target, learner_state.count, 1000)
        grads = jax.grad(loss_fn)(params.online, target, data)
        upd, opt = tx.update(grads, learner_state.opt_state)
        online = optax.apply_updates(params.online, upd)
        return Params(online, target), LearnerState(learner_state.count + 1, opt)

    s = jax.ShapeDtypeStruct
    data = Transition(
        s((B, 84, 84, 4), jnp.uint8),
        s((B,), jnp.int32),
        s((B,), jnp.float32),
        s((B,), jnp.float32),
        s((B, 84, 84, 4), jnp.uint8),
    )
    p, l = jax.eval_shape(init, jax.random.key(0))
    return jax.jit(learner_step, donate_argnums=(0, 1)), (p, l, data)
