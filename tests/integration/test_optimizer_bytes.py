"""The optimizer state in real captures: exact to the byte for each optimizer, against its own pytree."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from memprof.analysis.categories import Category, Role
from memprof.analysis.pipeline import analyze
from memprof.capture.launch import compile_in_child
from memprof.workloads import registry
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.evidence import verdicts

OPTIMIZERS = [pytest.param(optimizer.name, id=optimizer.name) for optimizer in registry.optimizers()]
COUNTER = 4  # an int32


@functools.cache
def reports() -> dict:
    """One report for each optimizer, two compiles at a time."""
    names = [optimizer.name for optimizer in registry.optimizers()]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(compiled, names), strict=True))


def compiled(name: str):
    arguments = {"workload": "transformer", "preset": "tiny", "overrides": [], "techniques": [f"opt={name}"]}
    return analyze(
        compile_in_child(
            "memprof.workloads.build:build_step", arguments, target="cpu", progress=lambda stage: None
        )
    )


@functools.cache
def pytree_bytes(name: str) -> int:
    """Bytes of the state as the optimizer itself makes it, on shapes alone."""
    choices = plan(workload="transformer", preset="tiny", techniques=[f"opt={name}"])
    params = build_trainer(choices).abstract_state().params
    state = jax.eval_shape(choices.optimizer.create(choices.train_config).init, params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def state_arguments(report) -> list:
    return [leaf for leaf in report.arguments if leaf.role is Role.OPTIMIZER_STATE]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_the_optimizers_own_pytree_to_the_byte(name):
    """What the update never reads is no argument of the program (adafactor's placeholders): it is listed as unused."""
    report = reports()[name]
    unused = [leaf for leaf in report.unused_arguments if leaf.role is Role.OPTIMIZER_STATE]
    assert sum(leaf.size_bytes for leaf in state_arguments(report)) == pytree_bytes(name)
    assert report.categories[Category.OPTIMIZER_STATE] + sum(leaf.size_bytes for leaf in unused) == pytree_bytes(name)
    assert all(leaf.num_elements <= 1 for leaf in unused)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_else_is_taken_for_it_and_little_is_left_unexplained(name):
    report, adamw = reports()[name], reports()["adamw"]
    assert report.categories[Category.PARAMS] == adamw.categories[Category.PARAMS] == 4 * report.num_params
    assert report.categories[Category.BATCH] == adamw.categories[Category.BATCH]
    assert report.categories[Category.OTHER_STATE] == adamw.categories[Category.OTHER_STATE]
    assert sum(report.categories.values()) == report.footprint_bytes
    assert report.categories[Category.UNATTRIBUTED] < 0.005 * report.footprint_bytes


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_switch_shows_in_the_program(name):
    report, adamw = reports()[name], reports()["adamw"]
    (verdict,) = verdicts(report, parse_techniques(f"opt={name}"), None if name == "adamw" else adamw)
    same_state = {"adam", "adamax", "adabelief", "lamb", "nadamw", "radam", "yogi"}
    assert verdict.took_effect == (name not in same_state), verdict.evidence


@pytest.mark.parametrize(
    ("name", "bytes_per_param", "counters"),
    [
        ("sgd", 0, 0),
        ("momentum", 4, 0),
        ("lion", 4, 1),
        ("adagrad", 4, 0),
        ("adam", 8, 1),
        ("adamw", 8, 1),
        ("adamw-bf16", 6, 1),
        ("ademamix", 12, 2),
        ("amsgrad", 12, 1),
        ("adan", 16, 1),
    ],
)
def test_rows_differ_by_the_arithmetic(name, bytes_per_param, counters):
    """AdamW keeps 8N bytes and a counter; Lion 4N less, sgd 8N less and no counter."""
    report, adamw = reports()[name], reports()["adamw"]
    difference = report.categories[Category.OPTIMIZER_STATE] - adamw.categories[Category.OPTIMIZER_STATE]
    assert difference == (bytes_per_param - 8) * report.num_params + COUNTER * (counters - 1)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon", "galore", "adam8bit", "adafactor"])
def test_the_state_is_shown_with_the_modules_that_it_belongs_to(name):
    """All but the counters (and muon's three coefficients) is below a module of the model."""
    report = reports()[name]
    in_modules = sum(child.categories.get(Category.OPTIMIZER_STATE, 0) for child in report.modules.children)
    without_module = report.categories[Category.OPTIMIZER_STATE] - in_modules
    assert without_module == {"muon": 2 * COUNTER + 12}.get(name, COUNTER)
