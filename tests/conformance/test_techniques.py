"""The laws of a technique. A new file in `workloads/techniques/` is tested by these without a line of its own.

Here: what it says of itself, and how it composes. `test_technique_training.py` trains with it, and
`test_technique_programs.py` compiles it and looks for its evidence.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re

import pytest

from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.build import plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.train_config import TrainConfig, inference_fields, technique_fields

TECHNIQUES = [pytest.param(technique, id=technique.name) for technique in registry.techniques()]
# Those of inference have a workload of their own.
WORKLOAD_OF = {
    technique.name: "decoder" if set(technique.sets) & inference_fields() else "transformer"
    for technique in registry.techniques()
}
PAIRS = [
    pytest.param(first, second, id=f"{first.example}+{second.example}")
    for first in registry.techniques()
    for second in registry.techniques()
    if first is not second and WORKLOAD_OF[first.name] == WORKLOAD_OF[second.name]
]
# A mesh with an axis for every technique that needs one.
AXES = {technique.axis: 2 for technique in registry.techniques() if technique.axis is not None}
PLACEHOLDER = re.compile("<[A-Z]")
LIBRARIES = {"nn": "flax.linen", "jnp": "jax.numpy"}
LIBRARY_NAME = r"(jax|jnp|nn|optax)(\.\w+)+"
# The transformer's own settings that no technique minds: `flash` has no dropout of probabilities.
WITHOUT_DROPOUT = ("attention_dropout_rate=0",)
# And a batch for several devices in minibatches.
OVERRIDES = (*WITHOUT_DROPOUT, "batch_size=16")


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_describes_itself(technique):
    module = importlib.import_module(f"memprof.workloads.techniques.{technique.family}")
    assert technique.name in {each.name for each in module.TECHNIQUES}
    assert technique.about.partition("\n")[0].endswith(".")
    assert all((technique.summary, technique.reference, technique.family))
    assert "\n" not in technique.summary
    assert all(type(category) is Category for category in (*technique.shrinks, *technique.grows))
    assert not set(technique.shrinks) & set(technique.grows)
    assert (technique.evidence is None) == (technique.family == "baseline")


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_says_how_a_user_does_it_in_code_that_exists(technique):
    """What its code names of jax, flax and optax is there; `test_advice_code.py` runs it."""
    (applied,) = parse_techniques(technique.example)
    if technique.family == "baseline":
        assert applied.instruction == ""
        return
    assert applied.instruction.endswith(".")
    assert technique.argument is None or not PLACEHOLDER.search(applied.instruction + applied.code)
    tree = ast.parse(applied.code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch(LIBRARY_NAME, name := ast.unparse(node)):
            assert pkgutil.resolve_name(re.sub("^(nn|jnp)", lambda match: LIBRARIES[match[0]], name)), name


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
    assert set(technique.sets) & technique_fields().keys() or technique.sets.keys() == {"optimizer"}
    assert bool(changed) != (technique.restates_baseline or technique.family == "baseline")


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_applies_to_a_tiny_workload_or_says_in_a_sentence_why_not(technique):
    applies_to = []
    for workload in registry.workloads():
        try:
            plan(
                workload=workload.name,
                preset=workload.tiny_preset,
                overrides=technique.settings if workload.name == WORKLOAD_OF[technique.name] else (),
                techniques=(*technique.needs, technique.example),
                axes=AXES,
            )
        except MemprofError as error:
            assert_one_sentence(error, (technique.example,))
        else:
            applies_to.append(workload.name)
    assert applies_to


@pytest.mark.parametrize("technique", [param for param in TECHNIQUES if param.values[0].needs])
def test_what_it_needs_is_named_where_it_is_missing(technique):
    with pytest.raises(MemprofError) as error:
        plan(
            workload=WORKLOAD_OF[technique.name],
            preset="tiny",
            overrides=WITHOUT_DROPOUT,
            techniques=[technique.example],
            axes=AXES,
        )
    assert_one_sentence(error.value, (technique.example,))
    assert all(label in str(error.value) for label in technique.needs)


@pytest.mark.with_one_jax
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_it_composes_or_says_why_not(first, second):
    labels = (first.example, second.example)
    conflicting = set(first.sets) & set(second.sets)
    try:
        own = OVERRIDES if WORKLOAD_OF[first.name] == "transformer" else ()
        overrides = (*own, *first.settings, *second.settings)
        choices = plan(
            workload=WORKLOAD_OF[first.name], preset="tiny", overrides=overrides, techniques=labels, axes=AXES
        )
    except MemprofError as error:
        if conflicting:
            assert_one_sentence(error, labels, all_of_them=True)
        elif {first.name, second.name} != {"window", "chunked-prefill"}:
            assert first.needs or second.needs, "only for want of something may two compatible techniques be refused"
            assert_one_sentence(error, labels)
    else:
        assert not conflicting
        assert tuple(applied.label for applied in choices.techniques) == labels


def assert_one_sentence(error: MemprofError, labels: tuple[str, ...], *, all_of_them: bool = False) -> None:
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    assert (all if all_of_them else any)(label in text for label in labels)
