"""The laws of a technique, trained for real on the CPU: the loss falls, and nothing but memory is another.

Gradient descent with momentum keeps its first gradient as it is, so that the whole step, with accumulation, loss
scaling or offloading, can be held to the baseline's gradient.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.train_config import inference_fields

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]
# Those that need several devices train on them: `test_sharded_training.py`.
TECHNIQUES = [
    pytest.param(technique, id=technique.name)
    for technique in registry.techniques()
    if technique.axis is None and not set(technique.sets) & inference_fields()
]
WORKLOADS = [workload.name for workload in registry.workloads() if workload.trains(workload.preset())]
CPU = Target(
    name="cpu", description="", platform="cpu", memory_bytes=None, compute_capability=None, reason="for the test"
)
NUM_UPDATES = 3
# Techniques of different kinds together; the last ones are rows of a published table (docs/published-tables.md).
COMBINATIONS = [
    "donate+scan+remat+accum2",
    "accum2+chunked-loss=4+offload-opt",
    "bf16+scan+remat-mlp-attn+accum4",
    "fp16+accum2+remat-act",
    "bf16-params+scan+prune=0.5+donate",
]


class Run(NamedTuple):
    """Losses before each step, the accuracy before the first, and the gradient of the first update, by path."""

    losses: list[float]
    accuracy: float
    gradient: dict[str, np.ndarray]


def tiny_plan(workload_name: str, label: str, num_layers: int | None = None) -> Any:
    """The choices for the tiny preset without dropout, where it has layers with so many of them."""
    workload = registry.workload(workload_name)
    config = workload.preset(workload.tiny_preset)
    rates = [name for name in config.__dataclass_fields__ if name.endswith("dropout_rate")]
    overrides = [*(f"{rate}=0" for rate in rates), "optimizer=momentum", "learning_rate=0.0625"]
    overrides += [f"num_layers={num_layers}"] if num_layers and workload_name == "transformer" else []
    return plan(workload=workload_name, preset=workload.tiny_preset, overrides=overrides, techniques=[label])


@functools.cache
def baseline_params(workload_name: str, num_layers: int | None) -> Any:
    return build_trainer(tiny_plan(workload_name, "baseline", num_layers)).init_state().params


@functools.cache
def train(workload_name: str, label: str, num_layers: int | None = None) -> Run:
    """Trains on one batch, from the baseline's parameters where the shapes are the same."""
    choices = tiny_plan(workload_name, label, num_layers)
    trainer = build_trainer(choices)
    step = jax.jit(
        trainer.step,
        donate_argnums=(0,) if choices.train_config.donate else (),
        compiler_options=choices.train_config.compiler_option_values(),
    )
    params = like(trainer.abstract_state().params, baseline_params(workload_name, num_layers))
    state = trainer.init_state() if params is None else trainer.state_of(params)
    batch = trainer.sample_batch(0)
    losses, accuracies, gradients = [], [], []
    while len(gradients) < NUM_UPDATES and len(losses) < 4 * NUM_UPDATES:  # loss scaling skips the first few
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
        accuracies.append(float(metrics["accuracy"][0] / metrics["accuracy"][1]))
        if int(state.step) > len(gradients):
            gradients.append(momentum(state))
    return Run(losses, accuracies[0], gradients[0])


def like(params: Any, baseline: Any) -> Any:
    """A copy of the baseline's parameters, in the arrangement and dtypes of others; None where shapes differ."""
    arranged = stacked(baseline) if "layers" in params else baseline
    if jax.tree.map(jnp.shape, arranged) != jax.tree.map(jnp.shape, params):
        return None
    return jax.tree.map(lambda ours, theirs: jnp.array(theirs, ours.dtype), params, arranged)


def stacked(params: Any) -> Any:
    layers = [params[name] for name in sorted(params) if name.startswith("layers_")]
    rest = {name: value for name, value in params.items() if not name.startswith("layers_")}
    return rest | {"layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)} if layers else rest


def momentum(state: Any) -> dict[str, np.ndarray]:
    """The momentum by path, with the parameters' layers stacked."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(stacked_if_needed(state.opt_state)):
        found[jax.tree_util.keystr(path)] = np.asarray(jax.device_get(leaf), np.float32)
    return found


def stacked_if_needed(opt_state: Any) -> Any:
    is_params = lambda node: isinstance(node, dict)  # noqa: E731
    return jax.tree.map(lambda node: stacked(node) if is_params(node) else node, opt_state, is_leaf=is_params)


# With each jax, techniques train together, see `COMBINATIONS`.
@pytest.mark.with_one_jax
@pytest.mark.parametrize("workload_name", WORKLOADS)
@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.slow_cases
def test_it_lowers_the_loss_and_agrees_with_the_baseline(technique, workload_name):
    # One layer shows what is done to each; what takes their sequence, and combinations, have several.
    num_layers = None if technique.name == "scan" or technique.needs else 1
    run = train_or_skip(workload_name, "+".join((*technique.needs, technique.example)), num_layers)
    assert np.isfinite(run.losses).all()
    assert run.losses[-1] < run.losses[0]
    if technique.tolerance is not None:
        assert_agrees(run, train(workload_name, "baseline", num_layers), technique.tolerance)


@pytest.mark.parametrize("label", COMBINATIONS)
@pytest.mark.slow_cases
def test_techniques_together_train_as_well(label):
    run = train("transformer", label)
    assert run.losses[-1] < run.losses[0]
    tolerances = [applied.technique.tolerance for applied in parse_techniques(label)]
    if None not in tolerances:
        assert_agrees(run, train("transformer", "baseline"), max(tolerances))


def train_or_skip(workload_name: str, label: str, num_layers: int | None) -> Run:
    try:
        tiny_plan(workload_name, label, num_layers)
    except MemprofError as error:
        pytest.skip(str(error))  # another law sees to it that it applies to some workload
    try:
        return train(workload_name, label, num_layers)
    except Exception:
        for applied in parse_techniques(label):
            if applied.technique.check_target is not None:
                with pytest.raises(MemprofError) as error:
                    applied.technique.check_target(CPU)
                pytest.skip(str(error.value))
        raise


def assert_agrees(run: Run, baseline: Run, tolerance: float) -> None:
    assert abs(run.losses[0] - baseline.losses[0]) <= tolerance * baseline.losses[0]
    # One example more or less can change sides in another precision.
    assert abs(run.accuracy - baseline.accuracy) <= (0.05 if tolerance > 1e-5 else 0)
    assert run.gradient.keys() == baseline.gradient.keys()
    distance = norm(run.gradient[path] - baseline.gradient[path] for path in run.gradient)
    assert distance <= tolerance * norm(baseline.gradient.values())


def norm(parts: Any) -> float:
    return float(np.sqrt(sum(np.sum(np.square(part, dtype=np.float64)) for part in parts)))
