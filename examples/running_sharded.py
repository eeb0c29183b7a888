"""A sharded training step in plain JAX that runs on the devices which are here, in one process or in several.

    memprof run examples/running_sharded.py --steps 20
    XLA_FLAGS=--xla_force_host_platform_device_count=8 memprof run examples/running_sharded.py --target cpu --steps 3

In a job of several processes each of them starts the same command, where it would start the training script, and the
step calls `jax.distributed.initialize` as that script does. Slurm, MPI and Kubernetes tell JAX all that it has to know;
elsewhere it is said by hand, here for two processes of four devices of the CPU each (`PROCESS_ID=1` in the other):

    export XLA_FLAGS=--xla_force_host_platform_device_count=4
    export JAX_COORDINATOR_ADDRESS=127.0.0.1:1234 NUM_PROCESSES=2
    PROCESS_ID=0 memprof run examples/running_sharded.py --target cpu --steps 3

The feed makes each part of the state and of the batch on the device that it is for. Arrays in the place of the shapes
would run as well; they would stay there beside the copies that the step takes.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import memprof

TX = optax.adamw(1e-3)


def loss(params, x):
    for layer in params:
        x = jnp.tanh(x @ layer)
    return jnp.mean(jnp.square(x))


def train_step(state, batch):
    params, opt_state = state
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = TX.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), value


def step_spec(*, batch_size: int = 64, width: int = 256, num_layers: int = 4) -> memprof.StepSpec:
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        num_processes, process_id = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
        jax.distributed.initialize(num_processes=num_processes, process_id=process_id)
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, PartitionSpec("fsdp")), NamedSharding(mesh, PartitionSpec())

    def make_state():
        keys = jax.random.split(jax.random.key(0), num_layers)
        params = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys]
        return params, TX.init(params)

    def make_batch(step):
        data = np.random.default_rng(step).standard_normal((batch_size, width), np.float32)
        return jax.make_array_from_callback(data.shape, rows, lambda index: data[index])

    shapes = jax.eval_shape(make_state)
    shardings = jax.tree.map(lambda leaf: rows if leaf.ndim else whole, shapes)
    state = jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), shapes, shardings)
    batch = jax.ShapeDtypeStruct((batch_size, width), "float32", sharding=rows)
    feed = memprof.Feed(
        argument=lambda number, step: (
            jax.jit(make_state, out_shardings=shardings)() if number == 0 else make_batch(step)
        ),
        loss=lambda result: float(result[1]),
        num_examples=batch_size,
    )
    return memprof.StepSpec(train_step, (state, batch), donate_argnums=0, feed=feed)
