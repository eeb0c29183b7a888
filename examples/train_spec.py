"""A loss with its parameters, optimizer and batch: enough for memprof to try techniques on it.

memprof compare examples/train_spec.py:step_spec -t baseline -t bf16+donate -t accum4 -t remat-dots --target h100-80gb
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import memprof


class Model(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, train):
        x = nn.gelu(nn.Dense(self.width, name="hidden", dtype=x.dtype)(x))
        x = nn.gelu(nn.Dense(self.width, name="second", dtype=x.dtype)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(10, name="head", dtype=x.dtype)(x)


def step_spec(width: int = 512, batch_size: int = 256) -> memprof.TrainSpec:
    model = Model(width)
    batch = {
        "x": jax.ShapeDtypeStruct((batch_size, 128), jnp.float32),
        "y": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 128)), train=False)["params"])

    def loss_fn(params, batch, rng):
        logits = model.apply({"params": params}, batch["x"], train=True, rngs={"dropout": rng})
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), batch["y"]).mean()

    return memprof.TrainSpec(loss_fn=loss_fn, params=params, optimizer=optax.adamw(1e-3), batch=batch)
