"""IMPALA learner in Haiku: small ResNet torso over time and batch, LSTM core by hk.dynamic_unroll, V-trace, RMSProp; the actors'
policy lags behind, so their logits come with the batch."""

import haiku as hk, jax, jax.numpy as jnp, optax

T, B, ACTIONS, CORE = 20, 32, 15, 256


class ResidualBlock(hk.Module):
    def __init__(self, channels, name=None):
        super().__init__(name=name)
        self.channels = channels

    def __call__(self, x):
        y = hk.Conv2D(self.channels, 3, name="conv_a")(jax.nn.relu(x))
        return x + hk.Conv2D(self.channels, 3, name="conv_b")(jax.nn.relu(y))


class Torso(hk.Module):
    def __call__(self, frames):
        x = frames.astype(jnp.float32) / 255.0
        for i, channels in enumerate((16, 32, 32)):
            x = hk.Conv2D(channels, 3, name=f"down_{i}")(x)
            x = hk.max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            x = ResidualBlock(channels, name=f"res_{i}")(x)
        return jax.nn.relu(hk.Linear(256, name="flat")(jax.nn.relu(x).reshape(x.shape[0], -1)))


class Agent(hk.Module):
    def __call__(self, frames, rewards, first, state):
        torso = hk.BatchApply(Torso())(frames)
        x = jnp.concatenate([torso, jnp.clip(rewards, -1, 1)[..., None]], -1)
        core = hk.ResetCore(hk.LSTM(CORE, name="lstm"))
        x, state = hk.dynamic_unroll(core, (x, first), state)
        return hk.Linear(ACTIONS, name="policy")(x), hk.Linear(1, name="value")(x)[..., 0], state


def vtrace(behaviour, target, actions, rewards, discounts, values):
    logp = lambda logits: jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]
    ratio = jnp.exp(logp(target) - logp(behaviour))
    rho, c = jnp.minimum(1.0, ratio), jnp.minimum(1.0, ratio)
    deltas = rho * (rewards + discounts * values[1:] - values[:-1])

    def back(acc, xs):
        delta, discount, c_t = xs
        acc = delta + discount * c_t * acc
        return acc, acc

    _, errors = jax.lax.scan(back, jnp.zeros(B), (deltas, discounts, c), reverse=True)
    vs = values[:-1] + errors
    advantage = rho * (rewards + discounts * jnp.concatenate([vs[1:], values[-1:]]) - values[:-1])
    return jax.lax.stop_gradient(vs), jax.lax.stop_gradient(advantage)


def make():
    agent = hk.without_apply_rng(hk.transform(lambda *args: Agent()(*args)))
    tx = optax.chain(optax.clip_by_global_norm(40.0), optax.rmsprop(6e-4, decay=0.99, eps=0.1))
    s = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
    batch = {
        "frames": s(T + 1, B, 72, 96, 3, dtype=jnp.uint8),
        "rewards": s(T + 1, B),
        "first": s(T + 1, B, dtype=jnp.bool_),
        "actions": s(T, B, dtype=jnp.int32),
        "behaviour_logits": s(T, B, ACTIONS),
        "initial_core": hk.LSTMState(s(B, CORE), s(B, CORE)),
    }
    inputs = (batch["frames"], batch["rewards"], batch["first"], batch["initial_core"])
    params = jax.eval_shape(agent.init, jax.random.PRNGKey(0), *inputs)

    def loss_fn(params, batch):
        logits, values, _ = agent.apply(params, batch["frames"], batch["rewards"], batch["first"], batch["initial_core"])
        rewards, discounts = batch["rewards"][1:], 0.99 * (1.0 - batch["first"][1:])
        vs, advantage = vtrace(batch["behaviour_logits"], logits[:-1], batch["actions"], rewards, discounts, values)
        logp = jax.nn.log_softmax(logits[:-1])
        taken = jnp.take_along_axis(logp, batch["actions"][..., None], -1)[..., 0]
        entropy = -jnp.sum(jnp.exp(logp) * logp, -1)
        return jnp.sum(-taken * advantage) + 0.5 * jnp.sum((vs - values[:-1]) ** 2) - 0.01 * jnp.sum(entropy)

    def update(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, {"loss": loss, "grad_norm": optax.global_norm(grads)}

    return jax.jit(update, donate_argnums=(0, 1)), (params, jax.eval_shape(tx.init, params), batch)
