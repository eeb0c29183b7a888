"""MoCo: momentum encoder, queue of negatives, batch statistics; flax linen."""

import flax.linen as nn, jax, jax.numpy as jnp, optax
from typing import Any
from flax import struct


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for i, f in enumerate((32, 64, 128)):
            x = nn.Conv(f, (3, 3), strides=2, use_bias=False, name=f"conv_{i}")(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, name=f"bn_{i}")(x))
        x = x.mean((1, 2))
        x = nn.relu(nn.Dense(512, name="proj_1")(x))
        x = nn.Dense(128, name="proj_2")(x)
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


class State(struct.PyTreeNode):
    step: Any
    params: Any
    batch_stats: Any
    key_params: Any
    key_batch_stats: Any
    queue: Any
    ptr: Any
    opt_state: Any


B, K, S = 256, 16384, 64


def make():
    net = Encoder()
    tx = optax.sgd(0.03, momentum=0.9)

    def init(key):
        v = net.init(key, jnp.zeros((1, S, S, 3)), True)
        return State(
            jnp.zeros((), jnp.int32),
            v["params"],
            v["batch_stats"],
            v["params"],
            v["batch_stats"],
            jnp.zeros((K, 128)),
            jnp.zeros((), jnp.int32),
            tx.init(v["params"]),
        )

    def train_step(state, im_q, im_k):
        kp = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b, state.key_params, state.params)
        k, kv = net.apply({"params": kp, "batch_stats": state.key_batch_stats}, im_k, True, mutable=["batch_stats"])

        def loss_fn(p):
            q, qv = net.apply({"params": p, "batch_stats": state.batch_stats}, im_q, True, mutable=["batch_stats"])
            logits = jnp.concatenate([jnp.sum(q * k, -1, keepdims=True), q @ state.queue.T], -1) / 0.07
            return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.zeros((B,), jnp.int32)).mean(), qv

        (loss, qv), g = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        u, opt = tx.update(g, state.opt_state, state.params)
        queue = jax.lax.dynamic_update_slice(state.queue, k, (state.ptr, 0))
        return state.replace(
            step=state.step + 1,
            params=optax.apply_updates(state.params, u),
            batch_stats=qv["batch_stats"],
            key_params=kp,
            key_batch_stats=kv["batch_stats"],
            queue=queue,
            ptr=(state.ptr + B) % K,
            opt_state=opt,
        ), loss

    st = jax.eval_shape(init, jax.random.PRNGKey(0))
    s = jax.ShapeDtypeStruct((B, S, S, 3), jnp.float32)
    return jax.jit(train_step, donate_argnums=0), (st, s, s)
