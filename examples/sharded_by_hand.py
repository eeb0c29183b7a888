"""Fully sharded data parallelism by hand: `jax.shard_map`, with the gathers where the weights are used.

    memprof run examples/sharded_by_hand.py
    memprof run examples/sharded_by_hand.py --mesh fsdp=64 --hosts 8

Each device holds a slice of every weight and gathers the layer that it computes; `jax.checkpoint` has it gathered again
in the backward pass. What JAX makes of a gather there is the reduce-scatter of its gradient.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import memprof

TX = optax.adamw(1e-4)
SHARDED, ALIKE = PartitionSpec("fsdp"), PartitionSpec()


@jax.checkpoint
def layer(x, slices):
    up, down = (jax.lax.all_gather(each, "fsdp", tiled=True) for each in (slices["up"], slices["down"]))
    return x + jax.nn.gelu(x @ up) @ down


def loss(params, x):
    for slices in params:
        x = layer(x, slices)
    return jnp.mean(jnp.square(x))


def device_step(params, opt_state, x):
    """What each device does with its slices of the parameters, of their moments, and of the batch."""
    value, grads = jax.value_and_grad(loss)(params, x)
    grads = jax.tree.map(lambda grad: grad / jax.lax.axis_size("fsdp"), grads)  # a sum over the devices so far
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, jax.lax.pmean(value, "fsdp")


def step_spec(
    mesh: Mesh | None = None, width: int = 2048, num_layers: int = 8, batch_size: int = 4096
) -> memprof.StepSpec:
    mesh = mesh or memprof.mesh("h100-80gb", {"fsdp": 8})

    def shape(*dimensions):
        return jax.ShapeDtypeStruct(dimensions, jnp.float32)

    params = [{"up": shape(width, 4 * width), "down": shape(4 * width, width)} for _ in range(num_layers)]
    args = params, jax.eval_shape(TX.init, params), shape(batch_size, width)
    specs = jax.tree.map(lambda leaf: SHARDED if leaf.shape else ALIKE, args)
    step = partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=(*specs[:2], ALIKE))(device_step)
    args = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)), args, specs
    )
    return memprof.StepSpec(step, args, donate_argnums=(0, 1))
