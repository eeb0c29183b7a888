"""A simulation with a learned part, differentiated through 512 steps, in plain JAX: a scan keeps what each needs.

memprof plan examples/rollout.py:step_spec --target h100-80gb --memory 1.5GiB
"""

import jax
import jax.numpy as jnp
import optax

import memprof

NUM_STEPS, BATCH_SIZE, GRID, CHANNELS = 512, 4, 256, 32
optimizer = optax.adam(1e-3)


def convolved(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def next_state(params, state):
    hidden = jax.nn.gelu(convolved(state, params["first"]["kernel"]))
    hidden = jax.nn.gelu(convolved(hidden, params["second"]["kernel"]))
    diffusion = sum(jnp.roll(state, shift, axis) for shift in (1, -1) for axis in (1, 2)) - 4 * state
    return state + 0.01 * (diffusion + convolved(hidden, params["last"]["kernel"]))


def loss_fn(params, state, targets):
    def body(state, target):
        state = next_state(params, state)
        return state, jnp.mean((state - target) ** 2)

    _, losses = jax.lax.scan(body, state, targets)
    return jnp.mean(losses)


def train_step(params, opt_state, state, targets):
    loss, grads = jax.value_and_grad(loss_fn)(params, state, targets)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def step_spec():
    shapes = {"first": (2, CHANNELS), "second": (CHANNELS, CHANNELS), "last": (CHANNELS, 2)}
    params = {name: {"kernel": jax.ShapeDtypeStruct((3, 3, *shape), jnp.float32)} for name, shape in shapes.items()}
    state = jax.ShapeDtypeStruct((BATCH_SIZE, GRID, GRID, 2), jnp.float32)
    targets = jax.ShapeDtypeStruct((NUM_STEPS, *state.shape), jnp.float32)
    opt_state = jax.eval_shape(optimizer.init, params)
    return memprof.StepSpec(train_step, (params, opt_state, state, targets), workload="rollout")
