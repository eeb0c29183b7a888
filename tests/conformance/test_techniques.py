"""The laws of a technique. A new file in `workloads/techniques/` is tested by these without a line of its own."""

from __future__ import annotations

import dataclasses
import functools
import importlib

import jax
import numpy as np
import pytest

from memprof.analysis.categories import Category
from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.train_config import TrainConfig, technique_fields

TECHNIQUES = [pytest.param(technique, id=technique.name) for technique in registry.techniques()]
PAIRS = [
    pytest.param(first, second, id=f"{first.example}+{second.example}")
    for first in registry.techniques()
    for second in registry.techniques()
    if first is not second
]


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_describes_itself(technique):
    module = importlib.import_module(f"memprof.workloads.techniques.{technique.name.replace('-', '_')}")
    assert module.TECHNIQUE is technique
    assert module.__doc__
    assert all((technique.summary, technique.reference, technique.family))
    assert "\n" not in technique.summary
    assert all(type(category) is Category for category in (*technique.shrinks, *technique.grows))
    assert not set(technique.shrinks) & set(technique.grows)


def test_names_are_unique():
    names = [technique.name for technique in registry.techniques()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_its_label_is_read_as_itself(technique):
    (applied,) = parse_techniques(technique.example)
    assert applied.technique is technique
    assert applied.label == technique.example


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_changes_the_fields_that_it_says_and_twice_is_once(technique):
    (applied,) = parse_techniques(technique.example)
    start = TrainConfig(learning_rate=0.5, seed=7)
    once = applied.apply(start)
    changed = {
        field.name
        for field in dataclasses.fields(TrainConfig)
        if getattr(once, field.name) != getattr(start, field.name)
    }
    assert changed <= set(technique.sets)
    assert applied.apply(once) == once
    assert set(technique.sets) & technique_fields().keys(), "a technique decides at least one field of its own"
    if technique.family != "baseline":
        assert changed


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_it_composes_or_says_why_not(first, second):
    labels = (first.example, second.example)
    conflicting = set(first.sets) & set(second.sets)
    if conflicting:
        with pytest.raises(MemprofError) as error:
            plan(workload="mlp", techniques=labels)
        assert all(text in str(error.value) for text in labels)
    else:
        assert tuple(applied.label for applied in plan(workload="mlp", techniques=labels).techniques) == labels


@functools.cache
def one_step(workload_name: str, label: str) -> tuple[float, np.ndarray, float]:
    """Trains for a step without dropout; returns the loss, the gradient as one vector, and the loss after the step.

    Plain gradient descent with rate 1/16 moves the parameters by a sixteenth of the gradient, whatever the technique
    does to get it.
    """
    workload = registry.workload(workload_name)
    config = workload.preset(workload.tiny_preset)
    rates = [field.name for field in dataclasses.fields(config) if field.name.endswith("dropout_rate")]
    overrides = [*(f"{rate}=0" for rate in rates), "optimizer=sgd", "learning_rate=0.0625"]
    choices = plan(workload=workload_name, preset=workload.tiny_preset, overrides=overrides, techniques=[label])
    trainer = build_trainer(choices)
    step = jax.jit(trainer.step, donate_argnums=(0,) if choices.train_config.donate else ())
    batch = trainer.sample_batch(0)
    state = trainer.init_state()
    before = jax.device_get(state.params)
    state, metrics = step(state, batch)
    moves = jax.tree.map(lambda old, new: 16 * np.ravel(old - new), before, jax.device_get(state.params))
    _, next_metrics = step(state, batch)
    loss, next_loss = (float(pairs["loss"][0] / pairs["loss"][1]) for pairs in (metrics, next_metrics))
    return loss, np.concatenate(jax.tree.leaves(moves)), next_loss


@pytest.mark.parametrize("workload_name", [workload.name for workload in registry.workloads()])
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_lowers_the_loss_and_agrees_with_the_baseline(technique, workload_name):
    loss, gradient, next_loss = one_step(workload_name, technique.example)
    assert next_loss < loss
    if technique.tolerance is not None:
        expected_loss, expected_gradient, _ = one_step(workload_name, "baseline")
        assert abs(loss - expected_loss) <= technique.tolerance * expected_loss
        distance = np.linalg.norm(gradient - expected_gradient)
        assert distance <= technique.tolerance * np.linalg.norm(expected_gradient)
