"""Pruning: masks by magnitude, and whole heads and hidden units."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.errors import MemprofError
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.models.mlp.config import MLPConfig
from memprof.workloads.models.mlp.network import build_mlp
from memprof.workloads.models.transformer import TINY, TINY_LLAMA
from memprof.workloads.models.transformer.network import build_transformer
from memprof.workloads.models.transformer.pruning import prune_heads, pruned_config
from memprof.workloads.pruning import apply_masks, kept, magnitude_masks, prune_hidden_units
from memprof.workloads.train_config import TrainConfig

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]

KEY = jax.random.PRNGKey(0)


def test_masks_keep_the_larger_half_of_each_matrix_and_leave_the_rest_alone():
    params = {"dense": {"kernel": jnp.array([[1.0, -5.0], [3.0, -2.0]]), "bias": jnp.zeros(2)}, "table": jnp.ones(3)}
    masks = magnitude_masks(params, 0.5)
    assert jax.tree.map(lambda mask: mask.tolist(), masks) == {
        "dense": {"kernel": [[False, True], [True, False]], "bias": None},
        "table": None,
    }
    masked = apply_masks(params, masks)
    assert masked["dense"]["kernel"].tolist() == [[0, -5], [3, 0]]
    assert masked["dense"]["bias"] is params["dense"]["bias"]
    assert masked["table"] is params["table"]


def test_stacked_layers_are_pruned_each_on_its_own():
    kernel = jnp.array([[[1.0, 2.0]], [[30.0, 40.0]]])
    assert magnitude_masks({"kernel": kernel}, 0.5)["kernel"].tolist() == [[[False, True]], [[False, True]]]


def test_pruned_weights_get_no_gradient():
    kernel, masks = jnp.array([[1.0, 2.0]]), {"kernel": jnp.array([[False, True]])}
    gradient = jax.grad(lambda kernel: jnp.sum(apply_masks({"kernel": kernel}, masks)["kernel"] ** 2))(kernel)
    assert gradient.tolist() == [[0, 4]]


def test_masks_are_part_of_the_state_and_do_not_change():
    trainer = build_trainer(plan(workload="mlp", preset="tiny", techniques=["prune=0.25"]))
    state = trainer.init_state()
    after, _ = jax.jit(trainer.step)(state, trainer.sample_batch(0))
    jax.tree.map(np.testing.assert_array_equal, after.masks, state.masks)
    assert {mask.dtype for mask in jax.tree.leaves(state.masks)} == {jnp.dtype("bool")}
    assert float(jnp.mean(state.masks["hidden"]["kernel"])) == 0.75


def test_at_least_one_unit_is_kept():
    assert [kept(8, fraction) for fraction in (0, 0.5, 0.6, 0.9, 0.99)] == [8, 4, 4, 1, 1]


def test_a_pruned_configuration_has_fewer_heads_of_the_same_width():
    smaller = pruned_config(TINY, 0.5)
    assert (smaller.num_heads, smaller.head_width, smaller.mlp_width) == (1, 16, 64)
    assert pruned_config(TINY, 0) is TINY


def test_the_most_important_heads_stay_in_their_order():
    config = dataclasses.replace(TINY, num_heads=4)  # heads of width 8
    sizes = jnp.repeat(jnp.array([3.0, 1.0, 4.0, 2.0]), 8)
    qkv = {"kernel": jnp.tile(sizes, 3) * jnp.ones((32, 1)), "bias": jnp.tile(sizes, 3)}
    out = {"kernel": sizes[:, None] * jnp.ones((1, 32)), "bias": jnp.zeros(32)}
    smaller_qkv, smaller_out = prune_heads(qkv, out, config, num_kept=2)
    assert smaller_qkv["kernel"].shape == (32, 48)
    assert smaller_qkv["bias"].tolist() == ([3.0] * 8 + [4.0] * 8) * 3
    assert smaller_out["kernel"][:, 0].tolist() == [3.0] * 8 + [4.0] * 8
    assert smaller_out["bias"].shape == (32,)


def test_the_most_important_units_stay_in_their_order():
    up = {"kernel": jnp.array([[1.0, 0.0, 2.0]]), "bias": jnp.array([10.0, 20.0, 30.0])}
    down = {"kernel": jnp.array([[1.0], [9.0], [2.0]]), "bias": jnp.zeros(1)}
    gate = {"kernel": jnp.array([[0.0, 1.0, 0.0]])}
    smaller, smaller_down, keep = prune_hidden_units(down, 2, up=up, gate=gate)
    assert keep.tolist() == [1, 2]  # the middle one leads nowhere from its input, but what leaves it is large
    assert smaller["up"]["bias"].tolist() == [20, 30]
    assert smaller["gate"].keys() == {"kernel"}
    assert smaller["gate"]["kernel"].tolist() == [[1, 0]]
    assert smaller_down["kernel"].tolist() == [[9], [2]]


@pytest.mark.parametrize("gate", [0.0, 50.0])
def test_the_gate_counts_among_what_leads_to_a_unit(gate):
    up, down = {"kernel": jnp.array([[3.0, 2.0]])}, {"kernel": jnp.zeros((2, 1))}
    _, _, keep = prune_hidden_units(down, 1, up=up, gate={"kernel": jnp.array([[0.0, gate]])})
    assert keep.tolist() == [1 if gate else 0]


def test_a_gated_model_without_biases_is_pruned():
    config = dataclasses.replace(TINY_LLAMA, num_kv_heads=None)
    model = build_transformer(config, TrainConfig(structurally_pruned_fraction=0.5))
    layer = jax.eval_shape(model.init_params, KEY)["layers_0"]
    assert layer["attention"]["qkv"]["kernel"].shape == (32, 3 * 2 * 8)
    assert {name: layer["mlp"][name]["kernel"].shape for name in ("up", "gate", "down")} == {
        "up": (32, 32),
        "gate": (32, 32),
        "down": (32, 32),
    }


def test_heads_that_share_keys_are_not_pruned_one_by_one():
    with pytest.raises(MemprofError, match="prune-structured removes heads, but groups of heads share keys"):
        plan(workload="transformer", preset="tiny-llama", techniques=["prune-structured=0.5"])


def test_a_model_whose_pruned_parts_are_zero_computes_the_same():
    config = dataclasses.replace(TINY, dropout_rate=0.0)
    whole = build_transformer(config, TrainConfig())
    pruned = build_transformer(config, TrainConfig(structurally_pruned_fraction=0.5))
    params = jax.jit(whole.init_params)(KEY)
    for name in ("layers_0", "layers_1"):  # the first head and the first half of the hidden units contribute nothing
        attention, mlp = params[name]["attention"], params[name]["mlp"]
        attention["out"]["kernel"] = attention["out"]["kernel"].at[:16].set(0)
        attention["qkv"]["kernel"] = attention["qkv"]["kernel"].reshape(32, 3, 2, 16).at[:, :, 0].set(0).reshape(32, 96)
        mlp["down"]["kernel"] = mlp["down"]["kernel"].at[:64].set(0)
        mlp["up"]["kernel"] = mlp["up"]["kernel"].at[:, :64].set(0)
    smaller = pruned.unpruned.prune(params)
    tokens = jnp.array([[1, 2, 3, 4]])

    def logits_of(model, params):
        return jax.jit(lambda params: model.module.apply({"params": params}, tokens, rngs={"dropout": KEY}))(params)

    logits, expected = logits_of(pruned, smaller), logits_of(whole, params)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_stacked_layers_are_cut_like_single_ones():
    params = jax.eval_shape(
        build_transformer(TINY, TrainConfig(structurally_pruned_fraction=0.5, scan_layers=True)).init_params, KEY
    )
    assert params["layers"]["attention"]["qkv"]["kernel"].shape == (2, 32, 48)
    assert params["layers"]["attention"]["out"]["kernel"].shape == (2, 16, 32)
    assert params["layers"]["mlp"]["down"]["kernel"].shape == (2, 64, 32)


def test_the_classifier_loses_hidden_units_too():
    config = MLPConfig(batch_size=4, input_size=3, hidden_size=8, num_classes=2)
    params = jax.eval_shape(build_mlp(config, TrainConfig(structurally_pruned_fraction=0.75)).init_params, KEY)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == {
        "hidden": {"kernel": (3, 2), "bias": (2,)},
        "norm": {"scale": (2,), "bias": (2,)},
        "head": {"kernel": (2, 2), "bias": (2,)},
    }
