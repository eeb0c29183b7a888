"""The change that accumulates gradients: in how many parts, for which steps, and the step traced so."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from report_builder import H100

from memprof.analysis.records.capture import Topology
from memprof.analysis.records.rewrites import ExamplesInChunks, InMinibatches, NarrowSums, StepInMinibatches
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.minibatches import accumulated_more_and_more, chunked_more_and_more, in_parts
from memprof.studies.changes.own_jit import with_rewrite
from memprof.workloads.intents import Aim, Intent, means_to


def loss(weights: Any, batch: Any) -> Any:
    return jnp.mean(jnp.tanh(batch @ weights) ** 2)


def step(weights: Any, batch: Any) -> Any:
    return weights - jax.grad(loss)(weights, batch)


def normalised(weights: Any, batch: Any) -> Any:
    hidden = batch @ weights
    return weights - jax.grad(lambda weights: jnp.mean((batch @ weights - hidden.mean(0)) ** 2))(weights)


def depends_on_all(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        hidden = batch @ weights
        return jnp.mean(jnp.tanh(hidden - hidden.mean(0)))

    return weights - jax.grad(loss)(weights)


def _step(fn: Any = step, *, examples: int = 16, **fields: Any) -> Step:
    spec = StepSpec(fn, (jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((examples, 4), "float32")))
    known: Any = SimpleNamespace()
    return Step(**{"spec": spec, "target": H100, "report": known, "advice": (), **fields})


def _products(change: Change) -> set[int]:
    """The numbers of rows of the products in the traced step."""
    traced = str(traced_jaxpr(change.spec, H100))
    return {rows for rows in (1, 2, 4, 8, 16, 12, 6, 3) if f"f32[{rows},4] = dot_general" in traced}


def test_the_gradients_of_four_minibatches_are_added_up() -> None:
    (change,) = in_parts(_step())
    assert change.rule == "accumulated_gradients"
    assert change.intent == Intent(aim=Aim.ACCUMULATE_GRADIENTS, num_parts=4)
    assert change.what == "Accumulate the gradients of 4 minibatches of 4 examples"
    assert change.evidence == "by data flow, the loss is a sum over 16 examples"
    assert change.code == (
        "import memprof\n\n# after the definition of step\nstep = memprof.apply(memprof.InMinibatches(number=4))(step)"
    )
    assert change.rewrite == InMinibatches(number=4)
    assert change.keeps_numbers
    # The product of the gradient of the weights has 4 rows, too.
    assert _products(change) == {4}


@pytest.mark.parametrize(("examples", "number"), [(6, 3), (9, 3), (10, 2), (12, 4)])
def test_minibatches_are_equal_and_at_most_four(examples: int, number: int) -> None:
    assert [each.rewrite for each in in_parts(_step(examples=examples))] == [InMinibatches(number=number)]


@pytest.mark.parametrize(("examples", "numbers"), [(16, [2, 4, 8, 16]), (12, [2, 4, 12]), (9, [3, 9]), (7, [7])])
def test_a_plan_tries_more_and_more_minibatches(examples: int, numbers: list[int]) -> None:
    found = [change.rewrite for change in accumulated_more_and_more(_step(examples=examples))]
    assert found == [InMinibatches(number=number) for number in numbers]


def test_on_several_devices_each_minibatch_takes_examples_of_all() -> None:
    target = replace(H100, topology=Topology(num_devices=4))
    (change,) = in_parts(_step(target=target))
    assert change.rewrite == InMinibatches(number=4, interleaved=True)
    assert "memprof.InMinibatches(number=4, interleaved=True)" in change.code


def test_a_statistic_outside_of_the_loss_is_the_same_for_all_minibatches() -> None:
    assert len([*in_parts(_step(normalised))]) == 1


def clipped(weights: Any, batch: Any) -> Any:
    gradients = jax.vmap(jax.grad(lambda weights, x: jnp.tanh(x @ weights).sum()), in_axes=(None, 0))(weights, batch)
    norms = jnp.sqrt((gradients**2).sum((1, 2)))
    return weights - (gradients / jnp.maximum(norms, 1.0)[:, None, None]).sum(0)


def test_the_gradients_of_each_example_are_computed_minibatch_by_minibatch() -> None:
    (change,) = in_parts(_step(clipped, examples=12))
    assert (change.rule, change.what) == (
        "accumulated_gradients",
        "Accumulate the gradients of 6 minibatches of 2 examples",
    )
    assert change.evidence == "by data flow, the step computes each of 12 examples alone, and adds up the results"
    assert change.code.endswith("clipped = memprof.apply(memprof.StepInMinibatches(number=6))(clipped)")
    assert _products(change) == {2}
    found = [each.rewrite for each in accumulated_more_and_more(_step(clipped, examples=12))]
    assert found == [StepInMinibatches(number=number) for number in (2, 4, 12)]


def contrastive(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        hidden = jnp.tanh(jnp.tanh(jnp.tanh(batch @ weights) @ weights) @ weights)
        results = hidden.sum(-1)
        return jnp.mean(jnp.outer(results, results) ** 2)

    return weights - jax.grad(loss)(weights)


@pytest.mark.parametrize(("examples", "number"), [(16, 8), (12, 6), (14, 7), (3, 3)])
def test_examples_that_mix_late_are_in_chunks(examples: int, number: int) -> None:
    (change,) = in_parts(_step(contrastive, examples=examples))
    assert (change.rule, change.rewrite) == ("chunked_examples", ExamplesInChunks(number=number))
    assert change.evidence == f"by data flow, a part of the loss does not mix its {examples} examples"
    assert f"memprof.apply(memprof.ExamplesInChunks(number={number}))" in change.code
    assert _products(change) - {4} == {examples // number}  # besides the gradients of the weights


@pytest.mark.parametrize(("examples", "numbers"), [(16, [2, 4, 8, 16]), (12, [2, 4, 12])])
def test_a_plan_tries_more_and_more_chunks(examples: int, numbers: list[int]) -> None:
    found = [change.rewrite for change in chunked_more_and_more(_step(contrastive, examples=examples))]
    assert found == [ExamplesInChunks(number=number) for number in numbers]
    assert [*chunked_more_and_more(_step(depends_on_all, examples=examples))] == []


@pytest.mark.parametrize(
    "fields", [{"fn": depends_on_all}, {"fn": loss}, {"is_built_in": True}, {"examples": 1}, {"examples": 7}]
)
def test_for_other_steps_there_is_no_change(fields: dict[str, Any]) -> None:
    assert [*in_parts(_step(**fields))] == []


def test_the_technique_of_a_built_in_workload_has_as_many_minibatches() -> None:
    means = means_to(Intent(aim=Aim.ACCUMULATE_GRADIENTS, num_parts=8))
    assert means.technique == "accum8"
    assert "8 minibatches" in means.words


@pytest.mark.parametrize(("fn", "name"), [(jax.jit(partial(step)), "step"), (partial(clipped), "step")])
def test_a_second_change_has_the_name_of_the_step(fn: Any, name: str) -> None:
    first = with_rewrite(_step(fn).spec, NarrowSums())
    assert first is not None
    second = with_rewrite(first[1], StepInMinibatches(number=2))
    assert second is not None
    assert f"\n{name} = memprof.apply(memprof.StepInMinibatches(number=2))({name})" in second[0]
