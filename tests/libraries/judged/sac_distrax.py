"""SAC (CleanRL-jax/jaxrl style): flax linen actor and twin critics (nn.vmap ensemble), distrax tanh-normal, learned temperature, target critics."""
import distrax, flax.linen as nn, jax, jax.numpy as jnp, optax
from flax.training.train_state import TrainState
from flax import struct
from typing import Any
B, O, A, H = 2048, 64, 16, 512
class Actor(nn.Module):
    @nn.compact
    def __call__(self, o):
        for i in range(2): o = nn.relu(nn.Dense(H, name=f"fc{i}")(o))
        return nn.Dense(A, name="mean")(o), jnp.clip(nn.Dense(A, name="log_std")(o), -10, 2)
class Q(nn.Module):
    @nn.compact
    def __call__(self, o, a):
        x = jnp.concatenate([o, a], -1)
        for i in range(2): x = nn.relu(nn.Dense(H, name=f"fc{i}")(x))
        return nn.Dense(1, name="q")(x)[:, 0]
class QT(TrainState):
    target_params: Any = None
class Agent(struct.PyTreeNode):
    actor: Any; critic: Any; alpha: Any; key: Any
def make():
    ac = Actor(); q = nn.vmap(Q, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, out_axes=0, axis_size=2)()
    def init(k):
        o, a = jnp.zeros((1, O)), jnp.zeros((1, A)); qp = q.init(k, o, a)
        return Agent(TrainState.create(apply_fn=ac.apply, params=ac.init(k, o), tx=optax.adam(3e-4)), QT.create(apply_fn=q.apply, params=qp, target_params=qp, tx=optax.adam(3e-4)),
                     TrainState.create(apply_fn=None, params={"log_alpha": jnp.zeros(())}, tx=optax.adam(3e-4)), k)
    def sample(p, o, k):
        m, ls = ac.apply(p, o); return distrax.Transformed(distrax.MultivariateNormalDiag(m, jnp.exp(ls)), distrax.Block(distrax.Tanh(), 1)).sample_and_log_prob(seed=k)
    def update(ag, b):
        key, k1, k2 = jax.random.split(ag.key, 3); alpha = jnp.exp(ag.alpha.params["log_alpha"])
        na, nlp = sample(ag.actor.params, b["next_obs"], k1)
        tq = q.apply(ag.critic.target_params, b["next_obs"], na).min(0)
        y = b["rew"] + 0.99 * (1 - b["done"]) * (tq - alpha * nlp)
        ql, qg = jax.value_and_grad(lambda p: ((q.apply(p, b["obs"], b["act"]) - y) ** 2).mean())(ag.critic.params)
        critic = ag.critic.apply_gradients(grads=qg)
        def al(p):
            a, lp = sample(p, b["obs"], k2); return (alpha * lp - q.apply(critic.params, b["obs"], a).min(0)).mean(), lp.mean()
        (pl, lp), pg = jax.value_and_grad(al, has_aux=True)(ag.actor.params); actor = ag.actor.apply_gradients(grads=pg)
        ag_ = jax.grad(lambda p: -(jnp.exp(p["log_alpha"]) * (lp - A)))(ag.alpha.params)
        critic = critic.replace(target_params=optax.incremental_update(critic.params, critic.target_params, 0.005))
        return Agent(actor, critic, ag.alpha.apply_gradients(grads=ag_), key), {"q": ql, "pi": pl}
    s = jax.ShapeDtypeStruct
    b = dict(obs=s((B, O), jnp.float32), next_obs=s((B, O), jnp.float32), act=s((B, A), jnp.float32), rew=s((B,), jnp.float32), done=s((B,), jnp.float32))
    return jax.jit(update, donate_argnums=0), (jax.eval_shape(init, jax.random.PRNGKey(0)), b)
