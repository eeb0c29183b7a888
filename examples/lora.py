"""A frozen model with trained low-rank adapters: gradients for a part of the parameters only.

memprof run examples/lora.py:step_spec --target h100-80gb
"""

import jax
import jax.numpy as jnp
import optax

import memprof

optimizer = optax.adam(1e-3)


def init(width, rank):
    base = {
        "up": {"kernel": jnp.zeros((width, 4 * width)), "bias": jnp.zeros(4 * width)},
        "down": {"kernel": jnp.zeros((4 * width, width)), "bias": jnp.zeros(width)},
    }
    adapters = {
        "up": {"a": jnp.zeros((width, rank)), "b": jnp.zeros((rank, 4 * width))},
        "down": {"a": jnp.zeros((4 * width, rank)), "b": jnp.zeros((rank, width))},
    }
    return base, adapters


def predict(base, adapters, x):
    for name in ("up", "down"):
        with jax.named_scope(name):
            low_rank = (x @ adapters[name]["a"]) @ adapters[name]["b"]
            x = jax.nn.gelu(x @ base[name]["kernel"] + base[name]["bias"] + low_rank)
    return x


def train_step(base, adapters, opt_state, x, y):
    def loss_fn(adapters):
        return jnp.mean((predict(base, adapters, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(adapters)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(adapters, updates), opt_state, loss


def step_spec(width: int = 256, rank: int = 8, batch_size: int = 64) -> memprof.StepSpec:
    base, adapters = jax.eval_shape(lambda: init(width, rank))
    opt_state = jax.eval_shape(optimizer.init, adapters)
    x = jax.ShapeDtypeStruct((batch_size, width), jnp.float32)
    return memprof.StepSpec(train_step, (base, adapters, opt_state, x, x), donate_argnums=(1, 2))
