"""adam8bit: what it keeps, and that it trains as AdamW does."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memprof.workloads import registry
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.optimizers.adam8bit import MIN_QUANTISED_SIZE, adam8bit, scale_by_adam8bit
from memprof.workloads.optimizers.blockwise import SIGNED, UNSIGNED, dequantise

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]


def state_bytes(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_a_large_parameter_costs_two_codes_and_two_scales_for_each_block():
    """1024 x 1024 elements are 4096 blocks: 2 x (1 byte each + 4 bytes a block), and a counter."""
    state = jax.eval_shape(adam8bit(1e-3).init, {"kernel": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)})
    assert state_bytes(state) == 2 * (1024 * 1024 + 4 * 4096) + 4
    assert round(state_bytes(state) / 1024**2, 2) == 2.03


def test_gpt2_costs_just_over_two_bytes_a_parameter():
    choices = plan(workload="transformer", preset="gpt2", techniques=["opt=adam8bit"])
    state = build_trainer(choices).abstract_state()
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert round(state_bytes(state.opt_state) / num_params, 2) == 2.04


def test_a_parameter_below_the_threshold_keeps_its_moments_in_float32():
    params = {"small": jnp.zeros(MIN_QUANTISED_SIZE - 1), "large": jnp.zeros(MIN_QUANTISED_SIZE)}
    state = scale_by_adam8bit().init(params)
    assert (state.mu["small"].dtype, state.nu["small"].dtype) == (jnp.float32, jnp.float32)
    assert (state.mu["large"].dtype, state.nu["large"].dtype) == (jnp.int8, jnp.uint8)
    assert [leaf.shape for leaf in jax.tree.leaves((state.mu_scale, state.nu_scale))] == [(16,), (16,)]


def test_a_new_state_stands_for_zeros():
    state = scale_by_adam8bit().init({"kernel": jnp.zeros((64, 65))})
    for codes, scale, code in ((state.mu, state.mu_scale, SIGNED), (state.nu, state.nu_scale, UNSIGNED)):
        assert not np.asarray(dequantise(codes["kernel"], scale["kernel"], code)).any()


@pytest.mark.parametrize(
    "shape", [(), (1,), (MIN_QUANTISED_SIZE,), (MIN_QUANTISED_SIZE + 1,), (17, 19, 23), (3, 1, 37, 41)]
)
def test_the_first_step_is_that_of_adam_whatever_the_shape(shape):
    """It is made of the new moments, before they are quantised."""
    gradient = {"w": jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)}
    ours, adam = scale_by_adam8bit(), optax.scale_by_adam()
    step, state = jax.jit(lambda gradient: ours.update(gradient, ours.init(gradient)))(gradient)
    expected, _ = adam.update(gradient, adam.init(gradient))
    assert step["w"].shape == state.mu["w"].shape == shape
    np.testing.assert_allclose(step["w"], expected["w"], rtol=1e-4)


def test_small_parameters_follow_adam_for_good():
    ours, adam = scale_by_adam8bit(), optax.scale_by_adam()
    params = {"bias": jnp.zeros(100)}
    state, expected_state = ours.init(params), adam.init(params)
    rng = np.random.default_rng(0)
    for _ in range(5):
        gradient = {"bias": jnp.asarray(rng.normal(size=100), jnp.float32)}
        step, state = ours.update(gradient, state)
        expected, expected_state = adam.update(gradient, expected_state)
        np.testing.assert_allclose(step["bias"], expected["bias"], rtol=2e-4)


def test_a_tiny_gradient_beside_a_large_one_does_not_make_an_enormous_step():
    """The second moment is 1e-8 of its block's largest: were it lost, 0.1 x 1e-4 would be divided by epsilon."""
    gradients = jnp.full(MIN_QUANTISED_SIZE, 1e-4).at[::256].set(1.0)
    ours, adam = scale_by_adam8bit(), optax.scale_by_adam()
    state, expected_state = ours.init(gradients), adam.init(gradients)
    for gradient in (gradients, jnp.zeros_like(gradients), jnp.zeros_like(gradients)):
        step, state = ours.update(gradient, state)
        expected, expected_state = adam.update(gradient, expected_state)
        np.testing.assert_allclose(step, expected, rtol=0.5)


def test_a_second_moment_that_grows_by_less_than_a_step_of_the_code_is_followed():
    """Gradients double, but for the largest of each block, which sets the scale: a step adds 0.3% at most."""
    ours, adam = scale_by_adam8bit(), optax.scale_by_adam()
    largest = np.arange(MIN_QUANTISED_SIZE) % 256 == 0
    small = np.random.default_rng(0).uniform(0.1, 0.4, MIN_QUANTISED_SIZE)

    def follow(transformation):
        def step(state, factor):
            _, state = transformation.update(jnp.where(largest, 1.0, factor * small), state)
            return state, None

        factors = jnp.concatenate([jnp.ones(400), jnp.full(400, 2.0)])
        return jax.jit(lambda: jax.lax.scan(step, transformation.init(jnp.zeros(MIN_QUANTISED_SIZE)), factors)[0])()

    state, expected = follow(ours), follow(adam)
    root = np.asarray(dequantise(state.nu, state.nu_scale, UNSIGNED))
    ratio = root / np.sqrt(np.asarray(expected.nu))
    assert abs(ratio.mean() - 1) < 0.02
    assert ratio.std() < 0.08


def test_all_parameters_decay_by_the_learning_rate_times_the_weight_decay():
    params = {"kernel": jnp.ones((64, 64)), "bias": jnp.ones(64)}
    optimizer = adam8bit(0.5, weight_decay=0.25)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    for update in jax.tree.leaves(updates):
        np.testing.assert_array_equal(update, np.full(update.shape, -0.125))


def regression_losses(optimizer, num_steps: int) -> np.ndarray:
    """Fits two layers to a noisy function. Both kernels are large enough to be quantised."""
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    inputs = jax.random.normal(keys[0], (512, 40))
    targets = jnp.sin(2 * inputs[:, :32]) + inputs[:, 8:40] + 0.5 * jax.random.normal(keys[3], (512, 32))
    params = {
        "first": {"kernel": jax.random.normal(keys[1], (40, 160)) / 6, "bias": jnp.zeros(160)},
        "second": {"kernel": jax.random.normal(keys[2], (160, 32)) / 12, "bias": jnp.zeros(32)},
    }

    def loss(params):
        hidden = jnp.tanh(inputs @ params["first"]["kernel"] + params["first"]["bias"])
        return jnp.mean(jnp.square(hidden @ params["second"]["kernel"] + params["second"]["bias"] - targets))

    def step(carry, _):
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    train = jax.jit(lambda params, state: jax.lax.scan(step, (params, state), length=num_steps)[1])
    return np.asarray(train(params, optimizer.init(params)))


def test_a_regression_is_learnt_as_well_as_by_adamw():
    expected = regression_losses(optax.adamw(3e-3, weight_decay=1e-2), 150)
    losses = regression_losses(adam8bit(3e-3, weight_decay=1e-2), 150)
    assert expected[-1] < 0.2 * expected[0]
    np.testing.assert_allclose(losses[-1], expected[-1], rtol=0.02)


def transformer_losses(optimizer_name: str, num_steps: int) -> np.ndarray:
    """Wide enough for the kernels and the token table, and with them 97% of the parameters, to be quantised."""
    choices = plan(
        workload="transformer",
        preset="tiny",
        overrides=["hidden_size=64", "num_layers=1", "learning_rate=3e-3", "dropout_rate=0"],
    )
    trainer = build_trainer(dataclasses.replace(choices, optimizer=registry.optimizer(optimizer_name)))
    step = jax.jit(trainer.step, donate_argnums=0)
    state = trainer.init_state()
    losses = []
    for index in range(num_steps):
        state, metrics = step(state, trainer.sample_batch(index))
        losses.append(metrics["loss"][0] / metrics["loss"][1])
    return np.asarray(jax.device_get(losses))


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_transformer_is_trained_as_well_as_by_adamw():
    expected, losses = (transformer_losses(name, 100) for name in ("adamw", "adam8bit"))
    assert expected[-20:].mean() < 0.5 * expected[0]
    np.testing.assert_allclose(losses[-20:].mean(), expected[-20:].mean(), rtol=0.02)
