"""A Haiku convolutional network with batch statistics.

memprof run examples/haiku_cnn.py:step_spec --target h100-80gb
"""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

import memprof

optimizer = optax.sgd(0.1, momentum=0.9)


class Net(hk.Module):
    def __call__(self, images, is_training):
        x = images
        for stage, channels in enumerate((16, 32)):
            x = hk.Conv2D(channels, 3, stride=2, with_bias=False, name=f"conv_{stage}")(x)
            x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.99, name=f"norm_{stage}")(
                x, is_training
            )
            x = jax.nn.relu(x)
        return hk.Linear(10, name="head")(x.mean(axis=(1, 2)))


net = hk.without_apply_rng(hk.transform_with_state(lambda images, is_training: Net()(images, is_training)))


def train_step(params, state, opt_state, images, labels):
    def loss_fn(params):
        logits, new_state = net.apply(params, state, images, is_training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new_state

    (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), state, opt_state, loss


def step_spec(batch_size: int = 32) -> memprof.StepSpec:
    images = jax.ShapeDtypeStruct((batch_size, 32, 32, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    params, state = jax.eval_shape(lambda rng, x: net.init(rng, x, is_training=True), jax.random.key(0), images)
    opt_state = jax.eval_shape(optimizer.init, params)
    return memprof.StepSpec(train_step, (params, state, opt_state, images, labels), donate_argnums=(0, 1, 2))
