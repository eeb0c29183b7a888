"""An Equinox model with `eqx.filter_jit`: a model is a pytree whose leaves are arrays and functions.

memprof run examples/equinox_mlp.py:step_spec --target h100-80gb
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import memprof

optimizer = optax.adamw(1e-3)


class Regressor(eqx.Module):
    embed: eqx.nn.Linear
    body: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, width: int, *, key):
        keys = jax.random.split(key, 3)
        self.embed = eqx.nn.Linear(64, width, key=keys[0])
        self.body = eqx.nn.MLP(width, width, width, depth=2, key=keys[1])
        self.dropout = eqx.nn.Dropout(0.1)
        self.head = eqx.nn.Linear(width, 1, key=keys[2])

    def __call__(self, x, key):
        return self.head(self.dropout(self.body(self.embed(x)), key=key))


@eqx.filter_jit(donate="all-except-first")
def train_step(inputs, model, opt_state):
    x, y, key = inputs

    @eqx.filter_value_and_grad
    def loss_fn(model):
        return jnp.mean((jax.vmap(model)(x, jax.random.split(key, len(x))) - y) ** 2)

    loss, grads = loss_fn(model)
    updates, opt_state = optimizer.update(grads, opt_state, model)
    return eqx.apply_updates(model, updates), opt_state, loss


def step_spec(width: int = 256, batch_size: int = 64) -> memprof.StepSpec:
    def init(key):
        model = Regressor(width, key=key)
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    model, opt_state = eqx.filter_eval_shape(init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, 64), jnp.float32)
    y = jax.ShapeDtypeStruct((batch_size, 1), jnp.float32)
    inputs = (x, y, jax.eval_shape(jax.random.key, 0))
    return memprof.StepSpec(train_step, (inputs, model, opt_state))
