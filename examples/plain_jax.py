"""Plain JAX: parameters in a dict, Adam written by hand, jitted with its own options.

memprof run examples/plain_jax.py:step_spec --target h100-80gb
"""

from functools import partial

import jax
import jax.numpy as jnp

import memprof


def init(width):
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = [(64, width), (width, width), (width, 1)]
    return {
        f"layer_{number}": {"w": jax.random.normal(key, size) * size[0] ** -0.5, "b": jnp.zeros(size[1])}
        for number, (key, size) in enumerate(zip(keys, sizes, strict=True))
    }


def predict(weights, x):
    for number in range(3):
        with jax.named_scope(f"layer_{number}"):
            layer = weights[f"layer_{number}"]
            x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


@partial(jax.jit, static_argnames=("learning_rate",), donate_argnames=("weights", "moments"))
def train_step(weights, moments, count, x, y, *, learning_rate=1e-3):
    def loss_fn(weights):
        return jnp.mean((predict(weights, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(weights)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments["first"], grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, moments["second"], grads)
    weights = jax.tree.map(
        lambda w, m, v: w - learning_rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8),
        weights,
        first,
        second,
    )
    return weights, {"first": first, "second": second}, count, loss


def step_spec(width: int = 256, batch_size: int = 64) -> memprof.StepSpec:
    weights = jax.eval_shape(partial(init, width))
    x = jax.ShapeDtypeStruct((batch_size, 64), jnp.float32)
    y = jax.ShapeDtypeStruct((batch_size, 1), jnp.float32)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    moments = {"first": weights, "second": weights}
    return memprof.StepSpec(train_step, (weights, moments, count, x, y), kwargs={"learning_rate": 1e-2})
