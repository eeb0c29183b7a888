"""Which techniques `fit --techniques auto` chooses among, without compiling anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from report_builder import CPU, buffer, report

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.studies.fit.cheapest import Cost
from memprof.studies.fit.ladder import Ladder, find_ladder
from memprof.studies.subject import find_subject
from memprof.workloads.composition import parse_techniques
from memprof.workloads.techniques.offload import check_has_host_memory


def _plain(*batch_axes: int, optimizer_numbers: int = 2) -> Report:
    """A report of 4 bytes of parameters, with arrays of these first axes in the batch."""
    leaf = ArgumentLeaf(
        path="batch", role=Role.BATCH, shape=(), dtype="float32", size_bytes=4, donated=False, parameter_number=0
    )
    found = report(
        [
            buffer((1,), "f32", Category.PARAMS),
            buffer((optimizer_numbers,), "f32", Category.OPTIMIZER_STATE),
        ]
    )
    return replace(found, arguments=tuple(replace(leaf, shape=(axis, 3)) for axis in batch_axes))


def _ladder(plain: Report, workload: str = "transformer") -> Ladder:
    def count(labels: Sequence[str]) -> list[int]:
        return [10 * (number + 1) for number, _ in enumerate(labels)]

    subject = find_subject(workload, preset="tiny", overrides=["batch_size=12"])
    return find_ladder(subject, plain, count)


def _labels(ladder: Ladder) -> dict[str, list[str]]:
    return {family.name: [choice.label for choice in family.choices] for family in ladder.families}


def test_each_choice_is_of_its_family_and_costs_what_its_technique_says() -> None:
    for family in _ladder(_plain(12)).families:
        nothing, *choices = family.choices
        assert (nothing.label, nothing.cost) == ("", Cost())
        for choice in choices:
            ((technique,),) = ([each.technique for each in parse_techniques(choice.label)],)
            assert technique.family == family.name
            assert choice.cost.changes_training == (technique.tolerance is None)
            assert choice.cost.moves_to_host == (technique.check_target is check_has_host_memory)
            assert bool(choice.cost.recomputed_flops) == (Category.RECOMPUTED in technique.grows)


def test_the_levels_of_a_family_say_what_should_hold_less() -> None:
    levels = {
        choice.label: choice.level
        for family in _ladder(_plain(12)).families
        for choice in family.choices
        if choice.label
    }
    assert levels == {
        "donate": 1, "bf16": 1, "chunked-loss=8": 1, "remat-dots": 1, "remat-mlp": 1, "remat-attn": 1,
        "remat-mlp-attn": 2, "remat": 2, "remat-offload": 2, "accum2": 2, "accum4": 4, "accum12": 12,
        "offload-opt": 1, "opt=adafactor": 1, "opt=adam8bit": 1,
    }  # fmt: skip


def test_what_has_a_price_in_memory_is_not_compared_with_leaving_it_out() -> None:
    levels = {family.name: family.choices[0].level for family in _ladder(_plain(12)).families}
    assert levels == {
        "structure": 0, "precision": None, "loss": 0, "checkpointing": 0, "accumulation": None, "offload": None,
        "optimizer": 0,
    }  # fmt: skip


def test_minibatches_are_divisors_of_the_batch_each_at_least_twice_the_one_before() -> None:
    assert _labels(_ladder(_plain(12, 12)))["accumulation"] == ["", "accum2", "accum4", "accum12"]
    assert "accumulation" not in _labels(_ladder(_plain(12, 7)))  # which axis counts the examples is not known


def test_what_does_not_apply_is_left_out_with_the_reason() -> None:
    ladder = _ladder(replace(_plain(12, optimizer_numbers=1), target=CPU), "mlp")
    assert _labels(ladder) == {
        "structure": ["", "donate"],
        "precision": ["", "bf16"],
        "accumulation": ["", "accum2", "accum4", "accum12"],
    }
    assert "does not apply to mlp" in ladder.left_out["remat"]
    assert "the same on the CPU" in ladder.left_out["offload-opt"]
    assert "no larger than the parameters" in ladder.left_out["opt=adam8bit"]


def test_where_nothing_applies_the_first_reason_is_the_error() -> None:
    subject = find_subject("package.train:step_spec")
    with pytest.raises(MemprofError, match="is a StepSpec"):
        find_ladder(subject, _plain(), lambda labels: ["this is a StepSpec"] * len(labels))
