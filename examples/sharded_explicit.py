"""Sharding in types: a mesh with explicit axes, on which JAX follows the sharding of every array through the step.

    memprof run examples/sharded_explicit.py
    memprof run examples/sharded_explicit.py --mesh fsdp=32,tp=2 --hosts 8

Where two shardings leave more than one way, the step says which: `out_sharding`, or `jax.sharding.reshard` for the
weights that are gathered. `jax.set_mesh` gives the mesh that a `PartitionSpec` alone is on.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, PartitionSpec, reshard

import memprof

TX = optax.adamw(1e-4)


def layer(x, weights):
    up = reshard(weights["up"], PartitionSpec(None, "tp"))
    down = reshard(weights["down"], PartitionSpec("tp", None))
    hidden = jax.nn.gelu(x @ up)
    return x + jnp.einsum("bh,he->be", hidden, down, out_sharding=PartitionSpec("fsdp"))


def loss(params, x):
    for weights in params:
        x = jax.checkpoint(layer)(x, weights)
    return jnp.mean(jnp.square(x))


def train_step(params, opt_state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def step_spec(
    mesh: Mesh | None = None, width: int = 2048, num_layers: int = 8, batch_size: int = 4096
) -> memprof.StepSpec:
    mesh = mesh or memprof.mesh("h100-80gb", {"fsdp": 4, "tp": 2})
    jax.set_mesh(Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2))

    def shape(*dimensions, spec):
        return jax.ShapeDtypeStruct(dimensions, jnp.float32, sharding=spec)

    params = [
        {
            "up": shape(width, 4 * width, spec=PartitionSpec("fsdp", "tp")),
            "down": shape(4 * width, width, spec=PartitionSpec("tp", "fsdp")),
        }
        for _ in range(num_layers)
    ]
    opt_state = jax.eval_shape(TX.init, params)  # the moments' types have their parameters' shardings
    x = shape(batch_size, width, spec=PartitionSpec("fsdp"))
    return memprof.StepSpec(train_step, (params, opt_state, x), donate_argnums=(0, 1))
