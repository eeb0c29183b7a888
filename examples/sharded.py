"""A sharded training step in plain JAX, profiled for eight H100s on a machine that has none.

    memprof run examples/sharded.py
    memprof run examples/sharded.py --mesh fsdp=32,tp=2 --hosts 8 --target a100-80gb --set num_layers=32

Parameters and optimizer state are divided over both axes of the mesh, the batch over one. It is the mesh of the command
line, else one of `memprof.mesh`; on a cluster, take `jax.make_mesh` in its place.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import memprof

TX = optax.adamw(1e-4)
BATCH = 4096


def loss(params, batch):
    x = batch["x"]
    for layer in params:
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def train_step(state, batch):
    params, opt_state = state
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = TX.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), value


def step_spec(*, mesh: Mesh | None = None, num_layers: int = 8, width: int = 2048) -> memprof.StepSpec:
    mesh = mesh or memprof.mesh("h100-80gb", {"fsdp": 4, "tp": 2})

    def array(*shape, spec):
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, spec))

    params = [
        {
            "up": array(width, 4 * width, spec=PartitionSpec("fsdp", "tp")),
            "down": array(4 * width, width, spec=PartitionSpec("tp", "fsdp")),
        }
        for _ in range(num_layers)
    ]
    # The moments lie as their parameters do; optax makes them of the parameters' shapes, without shardings.
    opt_state = optax.tree_map_params(
        TX,
        lambda moment, param: jax.ShapeDtypeStruct(moment.shape, moment.dtype, sharding=param.sharding),
        jax.eval_shape(TX.init, params),
        params,
    )
    batch = {"x": array(BATCH, width, spec=PartitionSpec("fsdp"))}
    return memprof.StepSpec(train_step, ((params, opt_state), batch), donate_argnums=0)
