"""A step that does not train: prediction with a Flax model. No gradients, and the categories still add up.

memprof run examples/inference.py:step_spec --target h100-80gb
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

import memprof


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        for layer in range(4):
            x = nn.gelu(nn.Dense(512, name=f"hidden_{layer}")(x))
        return nn.Dense(1000, name="head")(x)


model = Classifier()


def predict(variables, images):
    return jax.nn.softmax(model.apply(variables, images))


def step_spec(batch_size: int = 256) -> memprof.StepSpec:
    images = jax.ShapeDtypeStruct((batch_size, 512), jnp.float32)
    return memprof.StepSpec(predict, (jax.eval_shape(model.init, jax.random.key(0), images), images))
