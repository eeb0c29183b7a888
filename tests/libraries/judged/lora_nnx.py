"""LoRA fine-tuning with flax nnx: nnx.LoRALinear, nnx.Optimizer(wrt=nnx.LoRAParam), frozen base weights in the state."""
import jax, jax.numpy as jnp, optax
from flax import nnx
B, D = 4096, 1024
class Net(nnx.Module):
    def __init__(self, rngs):
        self.l1 = nnx.LoRALinear(D, D, lora_rank=16, rngs=rngs); self.l2 = nnx.LoRALinear(D, D, lora_rank=16, rngs=rngs); self.out = nnx.Linear(D, 128, rngs=rngs)
    def __call__(self, x): return self.out(nnx.relu(self.l2(nnx.relu(self.l1(x)))))
def make():
    def build():
        m = Net(nnx.Rngs(0)); o = nnx.Optimizer(m, optax.adamw(1e-4), wrt=nnx.LoRAParam)
        return nnx.split(m, nnx.LoRAParam, ...), nnx.split(o)
    (gm, lora, frozen), (go, ostate) = nnx.eval_shape(build)
    def step(lora, ostate, frozen, x, y):
        model = nnx.merge(gm, lora, frozen); opt = nnx.merge(go, ostate)
        def loss(m): return optax.softmax_cross_entropy_with_integer_labels(m(x), y).mean()
        l, g = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
        opt.update(model, g)
        return nnx.state(model, nnx.LoRAParam), nnx.state(opt), l
    return jax.jit(step, donate_argnums=(0, 1)), (lora, ostate, frozen, jax.ShapeDtypeStruct((B, D), jnp.float32), jax.ShapeDtypeStruct((B,), jnp.int32))
