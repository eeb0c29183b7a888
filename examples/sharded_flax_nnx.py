"""A Flax NNX network whose parameters carry how they are sharded.

    memprof run examples/sharded_flax_nnx.py
    memprof run examples/sharded_flax_nnx.py --mesh fsdp=32,tp=2 --hosts 8

`nnx.with_partitioning` names an axis of the mesh for each axis of a parameter, and the optimizer's moments take them
over. `nnx.get_abstract_model` makes shapes with these shardings, so nothing is allocated.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import memprof


def linear(num_in, num_out, axes, rngs):
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)
    return nnx.Linear(num_in, num_out, use_bias=False, kernel_init=init, rngs=rngs)


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.up = linear(width, 4 * width, ("fsdp", "tp"), rngs)
        self.down = linear(4 * width, width, ("tp", "fsdp"), rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))


class Mlp(nnx.Module):
    def __init__(self, width, num_layers, rngs):
        self.layers = nnx.List([Block(width, rngs) for _ in range(num_layers)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@partial(nnx.jit, donate_argnums=(0, 1))
def train_step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean(jnp.square(model(x))))(model)
    optimizer.update(model, grads)
    return loss


def step_spec(
    mesh: Mesh | None = None, width: int = 2048, num_layers: int = 8, batch_size: int = 4096
) -> memprof.StepSpec:
    mesh = mesh or memprof.mesh("h100-80gb", {"fsdp": 4, "tp": 2})

    def init():
        model = Mlp(width, num_layers, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    model, optimizer = nnx.merge(*nnx.get_abstract_model(init, mesh))
    batch_sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    x = jax.ShapeDtypeStruct((batch_size, width), jnp.float32, sharding=batch_sharding)
    return memprof.StepSpec(train_step, (model, optimizer, x))
