"""A Flax NNX classifier with batch normalisation and dropout, whose modules the step changes in place.

memprof run examples/flax_nnx.py:step_spec --target h100-80gb
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import memprof


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(nnx.gelu(self.norm(self.linear(x))))


class Classifier(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.embed = nnx.Linear(784, width, rngs=rngs)
        self.first = Block(width, rngs)
        self.second = Block(width, rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.second(self.first(self.embed(x))))


@nnx.jit
def train_step(model, optimizer, images, labels):
    def loss_fn(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def step_spec(width: int = 256, batch_size: int = 64) -> memprof.StepSpec:
    model = nnx.eval_shape(lambda: Classifier(width, nnx.Rngs(0)))
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(Classifier(width, nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param))
    images = jax.ShapeDtypeStruct((batch_size, 784), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return memprof.StepSpec(train_step, (model, optimizer, images, labels))
