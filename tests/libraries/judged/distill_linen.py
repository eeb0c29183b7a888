"""Knowledge distillation, frozen teacher passed as an argument; flax linen MLP-mixer-ish nets, TrainState."""
import flax.linen as nn, jax, jax.numpy as jnp, optax
from flax.training.train_state import TrainState
B, D = 4096, 784
class MLP(nn.Module):
    width: int
    @nn.compact
    def __call__(self, x):
        for i in range(2): x = nn.relu(nn.Dense(self.width, name=f"hidden_{i}")(x))
        return nn.Dense(100, name="classifier")(x)
def make():
    student, teacher = MLP(512), MLP(2048); tx = optax.sgd(0.1, momentum=0.9, nesterov=True)
    k = jax.random.PRNGKey(0); x = jnp.zeros((1, D))
    ts = jax.eval_shape(lambda k: TrainState.create(apply_fn=student.apply, params=student.init(k, x)["params"], tx=tx), k)
    tp = jax.eval_shape(lambda k: teacher.init(k, x)["params"], k)
    def train_step(state, teacher_params, x, y, temperature):
        t = jax.nn.softmax(teacher.apply({"params": teacher_params}, x) / temperature)
        def loss_fn(p):
            z = state.apply_fn({"params": p}, x)
            kd = optax.softmax_cross_entropy(z / temperature, t).mean() * temperature ** 2
            return 0.9 * kd + 0.1 * optax.softmax_cross_entropy_with_integer_labels(z, y).mean()
        l, g = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=g), l
    s = jax.ShapeDtypeStruct
    return jax.jit(train_step, donate_argnums=0), (ts, tp, s((B, D), jnp.float32), s((B,), jnp.int32), s((), jnp.float32))
