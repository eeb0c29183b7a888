"""fp8 training with flax linen's Fp8DirectDotGeneralOp (params + fp8 collection '_overwrite_with_gradient'), as in the flax fp8 guide."""
import flax.linen as nn, jax, jax.numpy as jnp, optax
from flax.linen import fp8_ops
from flax.training.train_state import TrainState
B, D = 4096, 1024
class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        dg = fp8_ops.Fp8DirectDotGeneralOp
        x = nn.gelu(nn.Dense(4 * D, dot_general_cls=dg, name="up")(x)); return nn.Dense(D, dot_general_cls=dg, name="down")(x)
def make():
    net = MLP(); s = jax.ShapeDtypeStruct; x = s((B, D), jnp.float32)
    v = jax.eval_shape(net.init, jax.random.PRNGKey(0), x)
    tx = optax.adam(1e-3)
    opt = jax.eval_shape(tx.init, v["params"])
    def step(variables, opt_state, x, y):
        def loss(v): return jnp.mean((net.apply(v, x) - y) ** 2)
        l, g = jax.value_and_grad(loss)(variables)
        u, opt_state = tx.update(g["params"], opt_state, variables["params"])
        return {"params": optax.apply_updates(variables["params"], u), "_overwrite_with_gradient": g["_overwrite_with_gradient"]}, opt_state, l
    return jax.jit(step, donate_argnums=(0, 1)), (v, opt, x, x)
