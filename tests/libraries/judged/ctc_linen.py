"""Speech recogniser: strided conv + LSTM (nn.RNN) + optax.ctc_loss; flax linen, TrainState."""

import flax.linen as nn, jax, jax.numpy as jnp, optax
from flax.training.train_state import TrainState

B, T, M, H, V, N = 32, 800, 80, 512, 64, 60


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(256, (5,), strides=2, name="conv1")(x))
        x = nn.relu(nn.Conv(256, (5,), strides=2, name="conv2")(x))
        x = nn.RNN(nn.OptimizedLSTMCell(H), name="lstm")(x)
        return nn.Dense(V, name="vocab")(x)


def make():
    net = Net()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))
    ts = jax.eval_shape(
        lambda k: TrainState.create(apply_fn=net.apply, params=net.init(k, jnp.zeros((1, T, M)))["params"], tx=tx),
        jax.random.PRNGKey(0),
    )

    def train_step(state, batch):
        def loss_fn(p):
            logits = state.apply_fn({"params": p}, batch["feats"])
            return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), batch["labels"], batch["label_paddings"]).mean()

        loss, g = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=g), {"loss": loss, "gnorm": optax.global_norm(g)}

    s = jax.ShapeDtypeStruct
    return jax.jit(train_step, donate_argnums=0), (
        ts,
        {"feats": s((B, T, M), jnp.float32), "labels": s((B, N), jnp.int32), "label_paddings": s((B, N), jnp.float32)},
    )
