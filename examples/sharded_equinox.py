"""An Equinox network, whose parameters `eqx.filter_shard` divides over all devices.

    memprof run examples/sharded_equinox.py
    memprof run examples/sharded_equinox.py --mesh fsdp=64 --hosts 8

On a cluster `eqx.filter_shard` also puts a model where it belongs before the first step; devices that are not there
take no arrays, so here the shapes are given their shardings.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import memprof

optimizer = optax.adamw(1e-3)


def train_step(model, opt_state, x, sharding):
    @eqx.filter_value_and_grad
    def loss_fn(model):
        return jnp.mean(jnp.square(jax.vmap(model)(x)))

    model = eqx.filter_shard(model, sharding)
    loss, grads = loss_fn(model)
    updates, opt_state = optimizer.update(grads, opt_state, model)
    return eqx.filter_shard(eqx.apply_updates(model, updates), sharding), opt_state, loss


def step_spec(mesh: Mesh | None = None, width: int = 2048, depth: int = 8, batch_size: int = 4096) -> memprof.StepSpec:
    mesh = mesh or memprof.mesh("h100-80gb", {"fsdp": 8})
    by_rows = NamedSharding(mesh, PartitionSpec("fsdp"))

    def init(key):
        model = eqx.nn.MLP(width, width, 4 * width, depth, use_bias=False, use_final_bias=False, key=key)
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def sharded(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct) or not leaf.shape:
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=by_rows)

    model, opt_state = jax.tree.map(sharded, eqx.filter_eval_shape(init, jax.random.key(0)))
    x = jax.ShapeDtypeStruct((batch_size, width), jnp.float32, sharding=by_rows)

    @eqx.filter_jit(donate="all-except-first")
    def step(x, model, opt_state):
        return train_step(model, opt_state, x, by_rows)

    return memprof.StepSpec(step, (x, model, opt_state))
