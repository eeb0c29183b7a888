"""The optimizer state in real captures: exact to the byte for each optimizer, against its own pytree."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from integration.steps import Step

from memprof.analysis.records.categories import Category, Role
from memprof.workloads import registry
from memprof.workloads.build import build_trainer, plan
from memprof.workloads.composition import parse_techniques, verdicts

# Each compile is of a transformer with its own state; what lies beside that is kept small.
pytestmark = pytest.mark.usefixtures("quick_compiles")
SMALL = ("num_layers=1", "dropout_rate=0", "attention_dropout_rate=0", "embedding_dropout_rate=0")
COUNTER = 4  # an int32


def representatives() -> list[str]:
    """The optimizers that most ask for, and of the others those whose state is like none of these."""
    names = ["adamw", "sgd", "momentum", "adam", "adamw-bf16", "adam8bit", "adafactor", "lion", "sm3", "lamb", "muon"]
    shapes = {"kernel": (128, 256), "bias": (256,)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}

    def state_of(optimizer) -> list:
        return sorted((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(optimizer.state(params)))

    known = [state_of(registry.optimizer(name)) for name in names]
    for optimizer in registry.optimizers():
        state = state_of(optimizer)
        if state not in known:
            names.append(optimizer.name)
            known.append(state)
    return names


def step_with(name: str) -> Step:
    return Step(workload="transformer", preset="tiny", target="cpu", overrides=SMALL, techniques=(f"opt={name}",))


ADAMW = step_with("adamw")
STEPS = [pytest.param(name, step_with(name), id=name) for name in representatives()]


def pytree_bytes(name: str) -> int:
    """Bytes of the state as the optimizer itself makes it, on shapes alone."""
    choices = plan(workload="transformer", preset="tiny", overrides=SMALL, techniques=[f"opt={name}"])
    params = build_trainer(choices).abstract_state().params
    state = jax.eval_shape(choices.optimizer.create(choices.train_config).init, params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def state_arguments(report) -> list:
    return [leaf for leaf in report.arguments if leaf.role is Role.OPTIMIZER_STATE]


@pytest.mark.parametrize(("name", "step"), STEPS)
@pytest.mark.slow_cases
def test_the_state_is_the_optimizers_own_pytree_to_the_byte(name, step, compiler):
    """What the update never reads is no argument of the program (adafactor's placeholders): it is listed as unused."""
    report = compiler.report(step)
    unused = [leaf for leaf in report.unused_arguments if leaf.role is Role.OPTIMIZER_STATE]
    assert sum(leaf.size_bytes for leaf in state_arguments(report)) == pytree_bytes(name)
    assert report.categories[Category.OPTIMIZER_STATE] + sum(leaf.size_bytes for leaf in unused) == pytree_bytes(name)
    assert all(leaf.num_elements <= 1 for leaf in unused)


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_nothing_else_is_taken_for_it_and_little_is_left_unexplained(name, step, compiler):
    report, adamw = compiler.report(step), compiler.report(ADAMW)
    assert report.categories[Category.PARAMS] == adamw.categories[Category.PARAMS] == 4 * report.num_params
    assert report.categories[Category.BATCH] == adamw.categories[Category.BATCH]
    assert report.categories[Category.OTHER_STATE] == adamw.categories[Category.OTHER_STATE]
    assert sum(report.categories.values()) == report.footprint_bytes
    assert report.categories[Category.UNATTRIBUTED] < 0.005 * report.footprint_bytes


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_each_switch_shows_in_the_program(name, step, compiler):
    report, adamw = compiler.report(step), compiler.report(ADAMW)
    baseline = dataclasses.replace(adamw, techniques=("baseline",))  # whose optimizer is AdamW
    (verdict,) = verdicts(report, parse_techniques(f"opt={name}"), baseline)
    assert verdict.took_effect == (name != "adamw"), (
        verdict.evidence
    )  # adam and lamb keep the same, and do another update


@pytest.mark.parametrize(
    ("step", "bytes_per_param", "counters"),
    [
        pytest.param(step_with("sgd"), 0, 0, id="sgd"),
        pytest.param(step_with("momentum"), 4, 0, id="momentum"),
        pytest.param(step_with("lion"), 4, 1, id="lion"),
        pytest.param(step_with("adam"), 8, 1, id="adam"),
        pytest.param(step_with("adamw"), 8, 1, id="adamw"),
        pytest.param(step_with("adamw-bf16"), 6, 1, id="adamw-bf16"),
        pytest.param(step_with("ademamix"), 12, 2, id="ademamix"),
        pytest.param(step_with("amsgrad"), 12, 1, id="amsgrad"),
        pytest.param(step_with("adan"), 16, 1, id="adan"),
    ],
)
def test_rows_differ_by_the_arithmetic(step, bytes_per_param, counters, compiler):
    """AdamW keeps 8N bytes and a counter; Lion 4N less, sgd 8N less and no counter."""
    report, adamw = compiler.report(step), compiler.report(ADAMW)
    difference = report.categories[Category.OPTIMIZER_STATE] - adamw.categories[Category.OPTIMIZER_STATE]
    assert difference == (bytes_per_param - 8) * report.num_params + COUNTER * (counters - 1)


@pytest.mark.parametrize(
    ("name", "step"),
    [pytest.param(name, step_with(name), id=name) for name in ("adamw", "lion", "muon", "galore", "adam8bit")],
)
def test_the_state_is_shown_with_the_modules_that_it_belongs_to(name, step, compiler):
    """All but the counters (and muon's three coefficients) is below a module of the model."""
    report = compiler.report(step)
    in_modules = sum(child.categories.get(Category.OPTIMIZER_STATE, 0) for child in report.modules.children)
    without_module = report.categories[Category.OPTIMIZER_STATE] - in_modules
    assert without_module == {"muon": 2 * COUNTER + 12}.get(name, COUNTER)
