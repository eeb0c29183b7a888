"""A recurrent network: a GRU scanned over time, in Flax linen.

memprof run examples/recurrent.py:step_spec --target h100-80gb
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import memprof

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


class CharacterModel(nn.Module):
    width: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(128, self.width, name="embed")(tokens)
        x = nn.RNN(nn.GRUCell(self.width), name="rnn")(x)
        return nn.Dense(128, name="head")(x)


def train_step(model, params, opt_state, tokens):
    def loss_fn(params):
        logits = model.apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def step_spec(width: int = 128, batch_size: int = 16, seq_len: int = 65) -> memprof.StepSpec:
    model = CharacterModel(width)
    tokens = jax.ShapeDtypeStruct((batch_size, seq_len), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    opt_state = jax.eval_shape(optimizer.init, params)
    return memprof.StepSpec(train_step, (model, params, opt_state, tokens), static_argnums=(0,), donate_argnums=(1, 2))
