"""fp16: a step whose gradients are not finite changes the scale of the loss and nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.build import build_trainer, plan

pytestmark = pytest.mark.usefixtures("quick_compiles")

OVERRIDES = ("dropout_rate=0",)


@pytest.fixture(scope="module")
def trainer():
    return build_trainer(plan(workload="mlp", preset="tiny", overrides=OVERRIDES, techniques=["fp16"]))


@pytest.fixture(scope="module")
def step(trainer):
    return jax.jit(trainer.step)


def with_scale(state, scale):
    return state.replace(dynamic_scale=state.dynamic_scale.replace(scale=jnp.float32(scale)))


def test_a_step_that_overflows_is_skipped_and_halves_the_scale(trainer, step):
    state = with_scale(trainer.init_state(), 2.0**100)
    after, metrics = step(state, trainer.sample_batch(0))
    assert float(after.dynamic_scale.scale) == 2.0**99
    assert np.isfinite(float(metrics["loss"][0]))
    restored = after.replace(dynamic_scale=state.dynamic_scale)
    jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_a_good_step_updates_and_keeps_the_scale(trainer, step):
    state = with_scale(trainer.init_state(), 1024)
    after, _ = step(state, trainer.sample_batch(0))
    assert (float(after.dynamic_scale.scale), int(after.dynamic_scale.fin_steps), int(after.step)) == (1024, 1, 1)
    assert any((old != new).any() for old, new in zip(*map(jax.tree.leaves, (state.params, after.params)), strict=True))


def test_the_scale_doubles_after_many_good_steps(trainer, step):
    state = with_scale(trainer.init_state(), 1024)
    state = state.replace(dynamic_scale=state.dynamic_scale.replace(fin_steps=jnp.int32(2000)))
    after, _ = step(state, trainer.sample_batch(0))
    assert (float(after.dynamic_scale.scale), int(after.dynamic_scale.fin_steps)) == (2048, 0)


def test_the_second_step_is_not_compiled_anew(trainer):
    step = jax.jit(trainer.step)
    state = trainer.init_state()
    for index in range(2):
        state, _ = step(state, trainer.sample_batch(index))
    assert step._cache_size() == 1


def test_without_fp16_the_state_has_no_scale():
    trainer = build_trainer(plan(workload="mlp", preset="tiny", techniques=["bf16"]))
    assert trainer.abstract_state().dynamic_scale is None
