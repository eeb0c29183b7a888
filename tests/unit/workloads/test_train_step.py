"""The training step: abstract and concrete agree, the rng is carried, arguments are named as the roles expect."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_arrays import no_arrays_made

from memprof.workloads.build import build_trainer, plan

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.fixture(scope="module")
def trainer():
    return build_trainer(plan(workload="mlp", preset="tiny", overrides=("dropout_rate=0.5",)))


@pytest.fixture(scope="module")
def compiled(trainer):
    return jax.jit(trainer.step).lower(trainer.abstract_state(), trainer.abstract_batch()).compile()


def avals(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name, bool(leaf.weak_type)), tree)


def test_abstract_and_concrete_state_are_the_same_to_jax(trainer):
    abstract, concrete = trainer.abstract_state(), trainer.init_state()
    assert jax.tree.structure(abstract) == jax.tree.structure(concrete)
    assert avals(abstract) == avals(concrete)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(abstract))


def test_the_new_state_looks_like_the_old_one(trainer):
    new_state, _ = jax.eval_shape(trainer.step, trainer.abstract_state(), trainer.abstract_batch())
    assert avals(new_state) == avals(trainer.abstract_state())


def test_an_abstract_step_allocates_nothing(trainer):
    with no_arrays_made():
        jax.jit(trainer.step).lower(trainer.abstract_state(), trainer.abstract_batch())


def test_arguments_are_named_after_state_and_batch(trainer):
    lowered = jax.jit(trainer.step).lower(trainer.abstract_state(), trainer.abstract_batch())
    text = lowered.as_text(debug_info=True)
    for name in (
        "state.step",
        "state.params['hidden']['kernel']",
        "state.opt_state[0].mu['hidden']['kernel']",
        "state.rng",
        "batch['inputs']",
    ):
        assert f'"{name}"' in text


def test_the_rng_is_carried_and_dropout_differs_from_step_to_step(trainer, compiled):
    state, batch = trainer.init_state(), trainer.sample_batch(0)
    first, metrics = compiled(state, batch)
    np.testing.assert_array_equal(first.rng, state.rng)
    assert int(first.step) == 1
    _, other_metrics = compiled(state.replace(step=jnp.int32(1)), batch)
    assert float(metrics["loss"][0]) != float(other_metrics["loss"][0])


def test_the_same_seed_gives_the_same_step(trainer, compiled):
    first, _ = compiled(trainer.init_state(), trainer.sample_batch(0))
    second, _ = compiled(trainer.init_state(), trainer.sample_batch(0))
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_batches_differ_by_index_and_seed(trainer):
    other = build_trainer(plan(workload="mlp", preset="tiny", overrides=("seed=1",)))
    first = trainer.sample_batch(0)["inputs"]
    np.testing.assert_array_equal(first, trainer.sample_batch(0)["inputs"])
    assert (first != trainer.sample_batch(1)["inputs"]).any()
    assert (first != other.sample_batch(0)["inputs"]).any()


def test_adamw_keeps_two_float32_numbers_a_parameter(trainer):
    state = trainer.abstract_state()
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.opt_state)) == 8 * num_params + 4


def test_sgd_keeps_nothing():
    trainer = build_trainer(plan(workload="mlp", preset="tiny", overrides=("optimizer=sgd",)))
    assert jax.tree.leaves(trainer.abstract_state().opt_state) == []
