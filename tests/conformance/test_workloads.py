"""The laws of a workload. A new folder in `workloads/models/` is tested by these without a line of its own."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from made_arrays import no_arrays_made

from memprof.analysis.records.categories import Role
from memprof.workloads import registry
from memprof.workloads.build import build_step, build_trainer, plan
from memprof.workloads.train_step import ROLES

pytestmark = pytest.mark.usefixtures("quick_compiles")
WORKLOADS = [pytest.param(workload, id=workload.name) for workload in registry.workloads()]
TRAINED = [param for param in WORKLOADS if param.values[0].trains(param.values[0].preset())]
PRESETS = [
    pytest.param(workload, preset, id=f"{workload.name}-{preset}")
    for workload in registry.workloads()
    for preset in workload.presets
]
TRAINED_PRESETS = [param for param in PRESETS if param.values[0].trains(param.values[0].preset())]


def tiny_trainer(workload, overrides=(), techniques=()):
    choices = plan(workload=workload.name, preset=workload.tiny_preset, overrides=overrides, techniques=techniques)
    return build_trainer(choices)


def size_bytes(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_describes_itself(workload):
    assert workload.name
    assert workload.summary
    assert "\n" not in workload.summary
    assert {workload.default_preset, workload.tiny_preset} <= workload.presets.keys()


@pytest.mark.parametrize(("workload", "preset"), PRESETS)
def test_a_configuration_is_frozen_scalars_that_can_be_json(workload, preset):
    config = workload.presets[preset]
    assert type(config) is workload.config_type
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 1
    flat = plan(workload=workload.name, preset=preset).flat_config()
    assert json.loads(json.dumps(flat)) == flat


@pytest.mark.parametrize(("workload", "preset"), PRESETS)
def test_each_field_can_be_set_to_its_own_value_as_text(workload, preset):
    config = workload.presets[preset]
    overrides = [f"{name}={value}" for name, value in dataclasses.asdict(config).items()]
    assert plan(workload=workload.name, preset=preset, overrides=overrides).config == config


@pytest.mark.parametrize(("workload", "preset"), TRAINED_PRESETS)
@pytest.mark.slow_cases
def test_a_preset_is_built_of_shapes_alone_and_every_argument_byte_has_its_role(workload, preset):
    # Each layer is traced, and the third is like the second.
    layers = ("num_layers=2",) if hasattr(workload.presets[preset], "num_layers") else ()
    with no_arrays_made():
        spec = build_step(workload=workload.name, preset=preset, overrides=layers)
        new_state, metrics = jax.eval_shape(spec.fn, *spec.args)
    state, batch = spec.args
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    assert {value.shape for pair in metrics.values() for value in pair} == {()}
    assert "loss" in metrics

    paths = [f"state{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    paths += [f"batch{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_flatten_with_path(batch)[0]]
    roles = {path: spec.roles[max(filter(path.startswith, spec.roles), key=len)] for path in paths}  # the longest wins
    assert sorted(path for path, role in roles.items() if role is Role.OTHER_STATE) == ["state.rng", "state.step"]
    assert set(ROLES.values()) == {Role.PARAMS, Role.OPTIMIZER_STATE, Role.BATCH, Role.OTHER_STATE}


@pytest.mark.parametrize(("workload", "preset"), [param for param in PRESETS if param not in TRAINED_PRESETS])
def test_a_step_that_trains_nothing_is_built_of_shapes_alone(workload, preset):
    with no_arrays_made():
        spec = build_step(workload=workload.name, preset=preset)
        _, cache = jax.eval_shape(spec.fn, *spec.args)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), cache) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), spec.args[1]
    )
    assert set(spec.roles.values()) == {Role.PARAMS, Role.KV_CACHE, Role.BATCH}


@pytest.mark.parametrize("workload", TRAINED)
def test_a_synthetic_batch_has_the_shapes_of_the_abstract_one(workload):
    trainer = tiny_trainer(workload)
    sample = trainer.sample_batch(0)
    assert {name: (value.shape, value.dtype) for name, value in sample.items()} == {
        name: (value.shape, value.dtype) for name, value in trainer.abstract_batch().items()
    }


@pytest.mark.parametrize("workload", TRAINED)
def test_twice_the_batch_size_is_twice_the_batch_and_the_same_state(workload):
    batch_size = workload.presets[workload.tiny_preset].batch_size
    one, two = (tiny_trainer(workload, (f"batch_size={size}",)) for size in (batch_size, 2 * batch_size))
    assert 2 * size_bytes(one.abstract_batch()) == size_bytes(two.abstract_batch())
    assert size_bytes(one.abstract_state()) == size_bytes(two.abstract_state())


@pytest.mark.parametrize("workload", TRAINED)
def test_it_learns_and_compiles_once(workload):
    trainer = tiny_trainer(workload, ("learning_rate=1e-2",))
    step = jax.jit(trainer.step)
    state = trainer.init_state()
    losses = []
    for index in range(30):
        state, metrics = step(state, trainer.sample_batch(index))
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.85 * np.mean(losses[:5])
    assert step._cache_size() == 1  # a weak type in the state would compile the second step anew
    assert int(state.step) == 30
