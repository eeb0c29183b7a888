"""A mixture of experts: which token goes where, what is dropped, and that techniques leave loss and gradients alone."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.errors import MemprofError
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.losses import add_to_loss
from memprof.workloads.models.transformer import MOE, TINY_MOE
from memprof.workloads.models.transformer.experts import MixtureOfExperts, capacity, route
from memprof.workloads.models.transformer.network import build_transformer
from memprof.workloads.scopes import LOSSES
from memprof.workloads.train_config import TrainConfig

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]
KEY = jax.random.PRNGKey(0)
LOOSE = dataclasses.replace(TINY_MOE, num_experts=4, capacity_factor=2.0, dropout_rate=0.0)  # nothing is dropped

routed = jax.jit(route, static_argnames=("experts_per_token", "capacity"))


def test_the_preset_has_as_many_parameters_as_it_says():
    params = jax.eval_shape(build_transformer(MOE, TrainConfig()).init_params, KEY)
    experts = sum(leaf.size for leaf in jax.tree.leaves(params["layers_0"]["mlp"]["experts"]))
    whole = sum(leaf.size for leaf in jax.tree.leaves(params))
    # 8 x (2 x 2048 x 8192 + 8192 + 2048) in each of 16 layers, of which a token goes through 2
    assert experts == 268_517_376
    assert whole == 4_700_540_160
    assert whole - 16 * experts * 6 // 8 == 1_478_331_648


def test_first_choices_come_before_second_ones_and_what_does_not_fit_is_dropped():
    # Experts 0, 1, 2 with room for two tokens each; the choices of three tokens are (0, 1), (0, 1) and (1, 0).
    probabilities = jnp.array([[[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]]])
    routing = routed(probabilities, experts_per_token=2, capacity=2)
    # Expert 0: tokens 0 and 1 by first choice, no room for token 2. Expert 1: token 2 by first choice, then token 0.
    np.testing.assert_array_equal(routing.token_of_slot, [[0, 1, 2, 0, 3, 3]])
    np.testing.assert_array_equal(routing.slot_of_choice, [[[0, 3], [1, 6], [2, 6]]])
    np.testing.assert_allclose(routing.weights, [[[2 / 3, 1 / 3]] * 3], rtol=1e-6)
    # 3 x (3/6 x 1.5/3 + 3/6 x 1.2/3 + 0)
    np.testing.assert_allclose(routing.imbalance, 3 * (0.5 * 0.5 + 0.5 * 0.4), rtol=1e-6)


def test_one_expert_a_token_is_weighed_by_its_probability():
    routing = routed(jnp.array([[[0.7, 0.3], [0.4, 0.6]]]), experts_per_token=1, capacity=1)
    np.testing.assert_allclose(routing.weights, [[[0.7], [0.6]]], rtol=1e-6)
    np.testing.assert_array_equal(routing.token_of_slot, [[0, 1]])
    np.testing.assert_allclose(routing.imbalance, 2 * (0.5 * 0.55 + 0.5 * 0.45), rtol=1e-6)


def test_an_expert_has_room_for_its_even_share_times_the_factor_and_never_for_more_than_all():
    assert capacity(TINY_MOE, 16) == 5  # 16 tokens x 2 / 8 x 1.25
    assert capacity(dataclasses.replace(TINY_MOE, capacity_factor=100.0), 16) == 16


def test_each_token_is_the_weighted_sum_of_its_experts():
    module = MixtureOfExperts(LOOSE, TrainConfig())
    hidden = jax.random.normal(KEY, (2, 8, LOOSE.hidden_size))
    params = jax.jit(module.init)({"params": KEY, "dropout": KEY}, hidden)["params"]
    found = jax.jit(lambda params, hidden: module.apply({"params": params}, hidden, rngs={"dropout": KEY}))(
        params, hidden
    )
    np.testing.assert_allclose(found, jax.jit(through_all_experts)(params, hidden), rtol=2e-4, atol=1e-5)


def through_all_experts(params, hidden):
    """Each token through every expert, and of the results the weighted sum of its two most probable ones."""
    normed = (hidden - hidden.mean(-1, keepdims=True)) / jnp.sqrt(hidden.var(-1, keepdims=True) + 1e-6)
    probabilities = jax.nn.softmax(normed @ params["router"]["kernel"])
    up, down = params["experts"]["up"], params["experts"]["down"]
    of_each = jax.nn.gelu(jnp.einsum("blh,ehw->blew", normed, up["kernel"]) + up["bias"])
    of_each = jnp.einsum("blew,ewh->bleh", of_each, down["kernel"]) + down["bias"]
    second = jnp.sort(probabilities, axis=-1)[..., -2:-1]
    weights = jnp.where(probabilities >= second, probabilities, 0)
    return jnp.einsum("bleh,ble->blh", of_each, weights / weights.sum(-1, keepdims=True))


def test_a_sequence_is_routed_the_same_whatever_batch_it_is_in():
    probabilities = jax.nn.softmax(jax.random.normal(KEY, (4, 8, 4)))
    whole, half = (routed(part, experts_per_token=2, capacity=5) for part in (probabilities, probabilities[2:]))
    for all_of_them, of_half in zip(whole[:3], half[:3], strict=True):
        np.testing.assert_array_equal(all_of_them[2:], of_half)


@pytest.mark.parametrize(("label", "shapes"), [("", [(), ()]), ("scan", [(2,)]), ("scan+remat", [(2,)])])
def test_unequal_use_in_each_layer_reaches_the_loss(label, shapes):
    trainer = build_trainer(plan(workload="transformer", preset="tiny-moe", techniques=[label] if label else []))
    params, tokens = trainer.abstract_state().params, trainer.abstract_batch()["inputs"]
    apply = functools.partial(trainer.model.module.apply, rngs={"dropout": KEY}, mutable=[LOSSES])
    _, sown = jax.eval_shape(apply, {"params": params}, tokens)
    assert [leaf.shape for leaf in jax.tree.leaves(sown[LOSSES])] == shapes
    metrics = {"loss": (np.float32(6), np.float32(3)), "accuracy": (np.float32(1), np.float32(3))}
    assert add_to_loss(metrics, {"a": np.float32(1), "b": np.array([2.0, 3.0])}) == {**metrics, "loss": (24, 3)}
    assert add_to_loss(metrics, {}) is metrics


@pytest.mark.parametrize(("remaining", "width"), [("0.5", 64), ("0.25", 96)])
def test_units_are_cut_out_of_each_expert(remaining, width):
    choices = plan(workload="transformer", preset="tiny-moe", techniques=[f"prune-structured={remaining}"])
    experts = build_trainer(choices).abstract_state().params["layers_0"]["mlp"]["experts"]
    assert experts["up"]["kernel"].shape == (8, 32, width)
    assert experts["down"]["kernel"].shape == (8, width, 32)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_experts": -1}, "num_experts is -1, but it must be 0 (none) or more."),
        ({"experts_per_token": 9}, "experts_per_token is 9, but it must be at most num_experts = 8."),
        ({"experts_per_token": 0}, "experts_per_token is 0, but it must be a number above zero."),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0, but it must be a number above zero."),
        ({"balance_loss_weight": -1.0}, "balance_loss_weight is -1.0, but it must not be negative."),
    ],
    ids=str,
)
def test_experts_that_cannot_be_built_are_rejected(changes, sentence):
    with pytest.raises(MemprofError) as error:
        dataclasses.replace(TINY_MOE, **changes)
    assert str(error.value) == sentence
