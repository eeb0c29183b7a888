"""Two optimizers in one: `optax.multi_transform` gives the embedding SGD and the rest Adam.

memprof run examples/two_optimizers.py:step_spec --target h100-80gb
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import memprof


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(1000, 64, name="embed")(tokens).mean(axis=1)
        x = nn.gelu(nn.Dense(128, name="hidden")(x))
        return nn.Dense(10, name="head")(x)


model = Model()
optimizer = optax.multi_transform(
    {"sparse": optax.sgd(0.1), "dense": optax.adam(1e-3)},
    lambda params: {name: "sparse" if name == "embed" else "dense" for name in params},
)


def train_step(params, opt_state, batch):
    def loss_fn(params):
        logits = model.apply({"params": params}, batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def step_spec(batch_size: int = 64) -> memprof.StepSpec:
    batch = {
        "tokens": jax.ShapeDtypeStruct((batch_size, 32), jnp.int32),
        "labels": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }
    params = jax.eval_shape(model.init, jax.random.key(0), batch["tokens"])["params"]
    opt_state = jax.eval_shape(optimizer.init, params)
    return memprof.StepSpec(train_step, (params, opt_state, batch), donate_argnums=(0, 1))
