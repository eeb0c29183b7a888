"""A Flax linen network whose axes have names, sharded by rules that say which axis of the mesh each name is.

    memprof run examples/sharded_flax_linen.py
    memprof run examples/sharded_flax_linen.py --mesh fsdp=32,tp=2 --hosts 8

`nn.with_logical_partitioning` names the axes of the parameters, `nn.with_logical_constraint` those of activations. Flax
looks for the mesh around the step, so it is set where the step is built.
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import memprof

RULES = (("batch", "fsdp"), ("embed", "fsdp"), ("hidden", "tp"))


def dense(features, axes, name):
    init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), axes)
    return nn.Dense(features, use_bias=False, kernel_init=init, name=name)


class Mlp(nn.Module):
    width: int
    num_layers: int

    @nn.compact
    def __call__(self, x):
        for layer in range(self.num_layers):
            hidden = nn.gelu(dense(4 * self.width, ("embed", "hidden"), f"up_{layer}")(x))
            hidden = nn.with_logical_constraint(hidden, ("batch", "hidden"))
            x = x + dense(self.width, ("hidden", "embed"), f"down_{layer}")(hidden)
        return x


def train_step(state, x):
    def loss_fn(params):
        return jnp.mean(jnp.square(state.apply_fn({"params": params}, x)))

    with nn.logical_axis_rules(RULES):
        loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def step_spec(
    mesh: Mesh | None = None, width: int = 2048, num_layers: int = 8, batch_size: int = 4096
) -> memprof.StepSpec:
    mesh = mesh or memprof.mesh("h100-80gb", {"fsdp": 4, "tp": 2})
    jax.set_mesh(mesh)
    model = Mlp(width=width, num_layers=num_layers)

    def init():
        params = model.init(jax.random.key(0), jnp.zeros((1, width)))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    named = jax.eval_shape(init)  # parameters and moments still with the names of their axes
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(named), mesh, RULES)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        nn.unbox(named),
        shardings,
    )
    batch_sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    x = jax.ShapeDtypeStruct((batch_size, width), jnp.float32, sharding=batch_sharding)
    return memprof.StepSpec(train_step, (state, x), donate_argnums=0)
