"""Sharded techniques, trained for real on eight devices of the CPU: each makes the baseline's gradients and updates.

So run the lines of code that show users how they do it themselves.
"""

from __future__ import annotations

import json

import pytest
from integration.command import QUICK
from script_rows import ScriptRows
from simple_kernels import SIMPLE_KERNEL_FLAGS

pytestmark = [pytest.mark.with_one_jax, pytest.mark.slow]
# With the model that compiles soonest, and what is the Transformer's own together; `zero1` does all that `dp` does.
LABELS = {
    "mlp": ("zero1", "zero2+tp", "fsdp+accum2"),
    "transformer": ("fsdp+sp+tp+scan",),
}
# Of the lines: the names that they give to what they have divided.
LINES = {
    "dp": ["batch"],
    "zero1": ["opt_state"],
    "zero2": ["gradients"],
    "fsdp": ["params"],
    "tp": [],
    "sp": ["x"],
    "ep": ["x"],
    "params over fsdp": ["params"],
    "optimizer state over tp": ["opt_state"],
    "batch over fsdp and tp": ["batch"],
    "logits over tp": ["logits"],
}
# In a process of its own, since XLA reads the number of its devices once.
SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, Mesh
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.intents import Aim, Intent, means_to
from memprof.workloads.mesh_axes import axes_of, split
from memprof.workloads.techniques import experts, sharding

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

def lines():
    # By name a line of code and the axes of the mesh that it is for.
    for technique in (*sharding.TECHNIQUES, *experts.TECHNIQUES):
        yield technique.name, technique.code, {technique.axis: 8}
    both = {"fsdp": 4, "tp": 2}
    for name, intent in {
        "params over fsdp": Intent(aim=Aim.DIVIDE_STATE, names=("params",), axes=("fsdp",)),
        "optimizer state over tp": Intent(aim=Aim.DIVIDE_STATE, names=("optimizer_state",), axes=("tp",)),
        "batch over fsdp and tp": Intent(aim=Aim.DIVIDE_BATCH, axes=("fsdp", "tp")),
        "logits over tp": Intent(aim=Aim.DIVIDE_LOGITS, axes=("tp",)),
    }.items():
        yield name, means_to(intent).code, both

def has_effect(code, axes, names):
    # Whether a line divides what it is to divide and changes no number, by itself and in a jit. Where to put an array
    # is for the loop around a jit to say: inside, XLA chooses.
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    params = {"w": jnp.ones((16, 32)), "b": jnp.ones(16), "scale": jnp.ones(())}
    arrays = {
        "params": params, "gradients": params, "opt_state": optax.adam(1e-3).init(params),
        "batch": {"x": jnp.ones((8, 4)), "y": jnp.ones(8)},
        "x": jnp.ones((2, 8, 4)),
        "logits": jnp.ones((2, 4, 8)),
    }
    arrays = {name: tree for name, tree in arrays.items() if name in code}
    def run(arrays):
        scope = {"jax": jax, "mesh": mesh, **arrays}
        exec(code, scope)
        return {name: scope[name] for name in arrays}
    for done in (run(arrays), *([] if "device_put" in code else [jax.jit(run)(arrays)])):
        whole = lambda tree: all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(tree))
        same = jax.tree.map(np.array_equal, *jax.device_get((done, arrays)))
        if any(whole(done[name]) for name in names) or not all(jax.tree.leaves(same)):
            return False
    return True

names = json.loads(sys.argv[2])
row("lines", [name for name, *_ in lines()])
for name, code, axes in lines():
    with fail_alone():
        row(name, has_effect(code, axes, names[name]))
for workload, labels in json.loads(sys.argv[1]).items():
    with fail_alone():
        start, expected, _ = train(workload, "baseline")
        for label in labels:
            with fail_alone():
                _, losses, as_planned = train(workload, label, start)
                row(f"{workload} {label}", [losses, expected, as_planned])
"""


@pytest.fixture(scope="module")
def rows() -> ScriptRows:
    """By line whether it divides its arrays; by step the losses, those on one device, and whether it lies so."""
    flags = f"--xla_force_host_platform_device_count=8 {SIMPLE_KERNEL_FLAGS}"
    return ScriptRows(SCRIPT, json.dumps(LABELS), json.dumps(LINES), **QUICK, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("name", LINES)
@pytest.mark.slow
def test_the_lines_that_show_how_to_divide_something_run_and_divide_it(name: str, rows: ScriptRows) -> None:
    assert rows[name] is True


def test_every_line_is_tested(rows: ScriptRows) -> None:
    assert set(rows["lines"]) == LINES.keys()


@pytest.mark.parametrize("name", [f"{workload} {label}" for workload, labels in LABELS.items() for label in labels])
def test_devices_that_share_a_step_make_the_same_updates(name: str, rows: ScriptRows) -> None:
    losses, expected, lies_as_planned = rows[name]
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[1] < losses[0]
    assert lies_as_planned
