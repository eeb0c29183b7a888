"""A Flax linen classifier with a `TrainState`.

memprof run examples/flax_linen.py:step_spec --target h100-80gb
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import memprof


class Mlp(nn.Module):
    width: int
    num_classes: int

    @nn.compact
    def __call__(self, x):
        for layer in range(3):
            x = nn.gelu(nn.Dense(self.width, name=f"hidden_{layer}")(x))
        return nn.Dense(self.num_classes, name="head")(x)


def train_step(state, batch):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def step_spec(width: int = 256, batch_size: int = 64) -> memprof.StepSpec:
    model = Mlp(width=width, num_classes=10)
    batch = {
        "image": jax.ShapeDtypeStruct((batch_size, 784), jnp.float32),
        "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }

    def init():
        params = model.init(jax.random.key(0), jnp.zeros((1, 784)))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    return memprof.StepSpec(train_step, (jax.eval_shape(init), batch), donate_argnums=(0,))
