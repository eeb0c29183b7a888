"""Optimizers by name: the listing, the technique `opt=<NAME>`, its evidence, and what the settings do."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from report_builder import report

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques, verdicts
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")

OPTIMIZERS = [pytest.param(optimizer, id=optimizer.name) for optimizer in registry.optimizers()]


LAYER = {
    "kernel": jax.ShapeDtypeStruct((512, 2048), jnp.float32),
    "bias": jax.ShapeDtypeStruct((2048,), jnp.float32),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", 0),
        ("momentum", 4 * (512 * 2048 + 2048)),
        ("adamw", 8 * (512 * 2048 + 2048) + 4),
        ("adamw-bf16", 6 * (512 * 2048 + 2048) + 4),
        ("lion", 4 * (512 * 2048 + 2048) + 4),
        # Rows and columns of the kernel and one number instead of the whole; all of the bias and two numbers.
        ("adafactor", 4 * (512 + 2048 + 1) + 4 * (2048 + 1 + 1) + 4),
        ("sm3", 4 * (512 * 2048 + 512 + 2048) + 4 * (2048 + 2048)),
        # The momentum of the kernel, two moments of the bias, two counters and three coefficients.
        ("muon", 4 * 512 * 2048 + 8 * 2048 + 4 + 4 + 12),
        # A projection of 512 x 128, two moments of 128 x 2048, two of the bias.
        ("galore", 4 * (512 * 128 + 2 * 128 * 2048) + 8 * 2048 + 4),
        # Two codes for each element of the kernel, two scales for each of its 4096 blocks; the bias is too small.
        ("adam8bit", 2 * (512 * 2048 + 4 * 4096) + 8 * 2048 + 4),
    ],
)
def test_the_bytes_of_a_layer_are_the_arithmetic(name, expected):
    state = registry.optimizer(name).state(LAYER)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) == expected


def test_asking_for_a_state_starts_no_device():
    code = (
        "import jax\n"
        "from memprof.workloads import registry\n"
        "params = {'kernel': jax.ShapeDtypeStruct((512, 2048), 'float32')}\n"
        "jax.config.update('jax_platforms', 'none of these')\n"
        "for optimizer in registry.optimizers(): optimizer.state(params)\n"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (asked.returncode, asked.stderr) == (0, "")


def test_the_technique_chooses_the_optimizer_and_nothing_else():
    choices = plan(workload="mlp", preset="tiny", techniques=["opt=lion"])
    assert choices.optimizer.name == "lion"
    assert choices.train_config == dataclasses.replace(TrainConfig(), optimizer="lion")
    assert [applied.label for applied in choices.techniques] == ["opt=lion"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_can_be_chosen(optimizer):
    (applied,) = parse_techniques(f"opt={optimizer.name}")
    assert applied.argument == optimizer.name


@pytest.mark.parametrize("name", ["adamW", "adam8", "8bit adam", "lion2"])
def test_a_wrong_name_lists_the_right_ones(name):
    with pytest.raises(MemprofError) as error:
        plan(workload="mlp", techniques=[f"opt={name}"])
    message = str(error.value)
    assert message.startswith(f"There is no optimizer '{name}' (did you mean '")
    assert all(optimizer.name in message for optimizer in registry.optimizers())
    assert "\n" not in message


def test_two_optimizers_are_one_too_many():
    with pytest.raises(MemprofError, match="'opt' is given twice"):
        plan(workload="mlp", techniques=["opt=lion+opt=sgd"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.slow_cases
def test_weight_decay_applies_where_it_is_said_to_and_nowhere_else(optimizer):
    params = {"kernel": jnp.full((8, 8), 2.0)}
    zero = jax.tree.map(jnp.zeros_like, params)

    def update(weight_decay):
        transformation = optimizer.create(TrainConfig(learning_rate=0.5, weight_decay=weight_decay))
        return transformation.update(zero, transformation.init(params), params)[0]["kernel"]

    without, with_decay = update(0.0), update(0.1)
    np.testing.assert_allclose(without, 0.0, atol=1e-3)  # yogi starts with moments of 1e-6
    assert (with_decay < without).all() if optimizer.decays_weights else (with_decay == without).all()


# Decoupled decay is the same of all: learning rate x decay x parameter. Of lars and lamb it is part of the direction
# whose length the trust ratio sets, of novograd and adan of what is averaged or solved for, of schedule-free of a step
# that only partly reaches the parameters.
DECOUPLED = ["adafactor", "adam8bit", "adamw", "adamw-bf16", "ademamix", "galore", "lion", "muon", "nadamw"]


@pytest.mark.parametrize("name", DECOUPLED)
def test_decoupled_decay_is_learning_rate_times_decay_of_the_parameter(name):
    params = {"kernel": jnp.full((8, 8), 2.0), "bias": jnp.full((8,), -2.0)}
    transformation = registry.optimizer(name).create(TrainConfig(learning_rate=0.5, weight_decay=0.1))
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = transformation.update(zero, transformation.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-6)
    np.testing.assert_allclose(updates["bias"], 0.1, rtol=1e-6)


def test_muon_takes_kernels_in_a_stack_for_matrices_and_stacked_biases_for_vectors():
    """The step of a matrix is nearly orthogonal, whatever the size of the gradient and of those of other layers."""
    rng = np.random.default_rng(0)
    orthogonal = np.linalg.qr(rng.normal(size=(3, 8, 8)))[0]
    gradients = {
        "kernel": jnp.asarray(orthogonal * np.reshape([1e-2, 1, 1e2], (3, 1, 1)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=(3, 8)), jnp.float32),
    }
    transformation = registry.optimizer("muon").create(TrainConfig(learning_rate=1.0, weight_decay=0.0))
    updates, _ = transformation.update(gradients, transformation.init(gradients), gradients)
    singular = np.linalg.svd(updates["kernel"], compute_uv=False)
    assert ((singular > 0.6) & (singular < 1.3)).all()
    # Adam's first step with Nesterov momentum is the sign times a constant.
    assert np.ptp(np.abs(updates["bias"])) < 1e-3


def leaves(prefix: str, role: Role, tree) -> list[ArgumentLeaf]:
    return [
        ArgumentLeaf(
            path=f"{prefix}{jax.tree_util.keystr(path)}",
            role=role,
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            size_bytes=leaf.size * leaf.dtype.itemsize,
            donated=False,
            parameter_number=0,
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def report_of(name: str, techniques: tuple[str, ...], workload: str = "transformer"):
    """What the report of a step says about its arguments."""
    choices = plan(workload=workload, preset="tiny", techniques=[f"opt={name}"])
    state = build_trainer(choices).abstract_state()
    arguments = (
        *leaves("state.params", Role.PARAMS, state.params),
        *leaves("state.opt_state", Role.OPTIMIZER_STATE, state.opt_state),
    )
    label = f"{workload} {'+'.join(techniques) or 'baseline'}"
    return dataclasses.replace(report(label=label, arguments=arguments), techniques=techniques)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.slow_cases
def test_evidence_is_the_state_of_the_optimizer(optimizer):
    label = f"opt={optimizer.name}"
    (verdict,) = verdicts(report_of(optimizer.name, (label,)), parse_techniques(label), None)
    assert verdict.took_effect
    assert label in verdict.evidence


def test_a_switch_that_does_nothing_is_flagged():
    """The label says lion, the program has AdamW's state."""
    (verdict,) = verdicts(report_of("adamw", ("opt=lion",)), parse_techniques("opt=lion"), None)
    assert not verdict.took_effect


def test_a_state_that_lacks_nothing_but_a_counter_is_flagged():
    """rmsprop keeps one array for each parameter, just as lion does, but no counter."""
    (verdict,) = verdicts(report_of("rmsprop", ("opt=lion",)), parse_techniques("opt=lion"), None)
    assert not verdict.took_effect


def test_the_optimizer_that_the_reference_has_anyway_changes_nothing():
    (verdict,) = verdicts(
        report_of("adamw", ("opt=adamw",)), parse_techniques("opt=adamw"), report_of("adamw", ("baseline",))
    )
    assert not verdict.took_effect


def test_the_same_technique_in_row_and_reference_is_no_fault():
    row, reference = report_of("lion", ("donate", "opt=lion")), report_of("lion", ("opt=lion",))
    (verdict,) = (
        verdict
        for verdict in verdicts(row, parse_techniques("donate+opt=lion"), reference)
        if verdict.evidence.startswith("opt=lion")
    )
    assert verdict.took_effect


def test_evidence_takes_parameters_in_double_precision():
    kernel = {"kernel": jax.ShapeDtypeStruct((4, 3), np.dtype("float64"))}
    arguments = (*leaves("params", Role.PARAMS, kernel), *leaves("opt_state", Role.OPTIMIZER_STATE, kernel))
    row = dataclasses.replace(report(arguments=arguments), techniques=("opt=momentum",))
    (verdict,) = verdicts(row, parse_techniques("opt=momentum"), None)
    assert verdict.took_effect
