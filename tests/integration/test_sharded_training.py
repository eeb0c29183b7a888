"""Sharded techniques, trained for real on eight devices of the CPU: each makes the baseline's gradients and updates."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.with_one_jax
# With the model that compiles soonest, and what is the Transformer's own together; `zero1` does all that `dp` does.
LABELS = {
    "mlp": ("zero1", "zero2+tp", "fsdp+accum2"),
    "transformer": ("fsdp+sp+tp+scan",),
}
# In a process of its own, since XLA reads the number of its devices once.
SCRIPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.mesh_axes import axes_of, split

SIZES = {
    "transformer": ("batch_size=16", "num_layers=1", "num_heads=4", "dropout_rate=0"),
    "mlp": ("hidden_size=64", "dropout_rate=0"),
}

def by_head(path, leaf):
    if "qkv" not in jax.tree_util.keystr(path):
        return leaf
    return jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], 3, 4, -1), -3, -2).reshape(leaf.shape)

def arranged(params, like, config):
    if config.tensor_parallel:
        params = jax.tree_util.tree_map_with_path(by_head, params)
    if "layers" in like:
        layers = [params.pop(f"layers_{number}") for number in range(1)]
        params["layers"] = jax.tree.map(lambda *each: jnp.stack(each), *layers)
    return params

def train(workload, label, start=None):
    applied = parse_techniques(label)
    axes = split(8, axes_of(applied))
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes)) if axes else None
    sizes = (*SIZES[workload], "optimizer=momentum", "learning_rate=0.0625")
    choices = plan(workload=workload, preset="tiny", overrides=sizes, techniques=[label], axes=axes)
    trainer = build_trainer(choices, mesh)
    if start is None:
        state = trainer.init_state()
    else:
        state = trainer.state_of(arranged(dict(start), trainer.abstract_state().params, choices.train_config))
    initial, shapes = jax.device_get(state.params), trainer.abstract_state()
    step, losses = jax.jit(trainer.step), []
    batch = trainer.sample_batch(0)
    for _ in range(2):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    lies = lambda leaf, wanted: mesh is None or leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)
    return initial, losses, all(jax.tree.leaves(jax.tree.map(lies, state, shapes)))

for workload, labels in json.loads(sys.argv[1]).items():
    start, expected, _ = train(workload, "baseline")
    for label in labels:
        _, losses, as_planned = train(workload, label, start)
        print(json.dumps([workload, label, losses, expected, as_planned]), flush=True)
"""


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[list[float], list[float], bool]]:
    """By workload and label the losses before two steps, those of the same on one device, and whether all lies so."""
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(LABELS)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {f"{workload} {label}": (losses, expected, planned) for workload, label, losses, expected, planned in found}


@pytest.mark.parametrize("row", [f"{workload} {label}" for workload, labels in LABELS.items() for label in labels])
def test_devices_that_share_a_step_make_the_same_updates(row: str, runs: dict[str, tuple[list[float], ...]]) -> None:
    losses, expected, lies_as_planned = runs[row]
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[1] < losses[0]
    assert lies_as_planned
