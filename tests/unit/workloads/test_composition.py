"""Techniques joined by `+`: read, checked, applied."""

from __future__ import annotations

import pytest

from memprof.errors import MemprofError
from memprof.workloads import composition, registry
from memprof.workloads.build import plan
from memprof.workloads.composition import apply_techniques, parse_techniques
from memprof.workloads.technique import ARGUMENT, Argument, Technique
from memprof.workloads.train_config import TrainConfig


def rejection(text: str) -> str:
    with pytest.raises(MemprofError) as error:
        parse_techniques(text)
    return str(error.value)


def test_techniques_are_applied_together():
    techniques = parse_techniques("bf16+donate")
    assert [applied.label for applied in techniques] == ["bf16", "donate"]
    assert apply_techniques(TrainConfig(), techniques) == TrainConfig(compute_dtype="bfloat16", donate=True)


def test_no_technique_is_the_baseline_configuration():
    assert parse_techniques("") == ()
    assert apply_techniques(TrainConfig(seed=3), parse_techniques("baseline")) == TrainConfig(seed=3)


def test_an_unknown_technique_names_the_closest_and_all_the_others():
    names = ", ".join(registry.technique_names())
    assert rejection("bf61+donate") == f"There is no technique 'bf61' (did you mean 'bf16'?): choose from {names}."
    assert rejection("BF16") == f"There is no technique 'BF16' (did you mean 'bf16'?): choose from {names}."


@pytest.mark.parametrize("text", ["int8-qdq", "dynamic-batch", "bf16+dynamic-length"])
def test_a_technique_for_engines_names_the_option_that_it_needs(text: str) -> None:
    name = text.rpartition("+")[2]
    assert rejection(text) == f"Technique '{name}' is for inference engines: add --engine tensorrt, or leave it out."


@pytest.mark.parametrize("text", ["bf16+", "+bf16", "bf16++donate", " "])
def test_an_empty_part_is_rejected(text):
    assert rejection(text) == (
        f"'{text}' has an empty technique: write names joined by one '+', for example bf16+donate."
    )


def test_a_technique_that_is_given_twice_is_rejected():
    assert rejection("bf16+donate+bf16") == "Technique 'bf16' is given twice ('bf16' and 'bf16')."


def test_the_baseline_stands_alone():
    assert rejection("bf16+baseline") == (
        "Techniques 'bf16' and 'baseline' both set compute_dtype: give only one of them."
    )


ACCUMULATION = Technique(
    name="accum-loop",
    summary="for this test",
    reference="none",
    about="For this test.",
    sets={"seed": ARGUMENT},
    argument=Argument(spelling="accum<N>-loop", pattern="[1-9][0-9]*", example="2", parse=int),
)


@pytest.fixture
def accumulation(monkeypatch):
    monkeypatch.setattr(composition.registry, "techniques", lambda: (ACCUMULATION,))


@pytest.mark.usefixtures("accumulation")
def test_an_argument_is_read_from_inside_the_label():
    (applied,) = parse_techniques("accum12-loop")
    assert (applied.label, applied.argument) == ("accum12-loop", 12)
    assert applied.apply(TrainConfig()) == TrainConfig(seed=12)
    assert (ACCUMULATION.usage, ACCUMULATION.example) == ("accum<N>-loop", "accum2-loop")


@pytest.mark.usefixtures("accumulation")
@pytest.mark.parametrize("text", ["accum-loop", "accum0-loop", "accum4", "xaccum4-loop", "accum4-loops"])
def test_an_argument_that_does_not_fit_is_an_unknown_technique(text):
    assert rejection(text).startswith(f"There is no technique '{text}'")
    assert rejection(text).endswith("choose from accum<N>-loop.")


@pytest.mark.usefixtures("accumulation")
def test_the_same_technique_with_another_argument_is_given_twice():
    assert rejection("accum2-loop+accum4-loop") == (
        "Technique 'accum-loop' is given twice ('accum2-loop' and 'accum4-loop')."
    )


@pytest.mark.parametrize(
    ("label", "axes", "overrides", "sentence"),
    [
        ("ep", {"ep": 2}, (), "Technique 'ep' shards experts, but num_experts is 0"),
        ("ep", {"ep": 3}, ("num_experts=8",), "num_experts is 8, but it must be a multiple of 3"),
        ("ep", {"ep": 8}, ("num_experts=8",), "batch_size is 4, but it must be a multiple of 8"),
        ("pp", {"pp": 4}, (), "num_layers is 2, but it must be a multiple of 4"),
        ("pp3", {"pp": 2}, (), "has 3 microbatches, but that must be a multiple of the 2 devices along pp"),
        ("pp4+dp", {"pp": 2, "dp": 2}, (), "must be a multiple of 8: there are 4 microbatches, each for 2 dev"),
        ("pp+accum4", {"pp": 2}, (), "a multiple of 8: there are 2 microbatches in each of 4 minibatches"),
        ("scan+pp", {"pp": 2}, (), "Techniques 'scan' and 'pp' both set scan_layers"),
    ],
)
def test_experts_and_layers_that_do_not_divide_are_one_sentence(label, axes, overrides, sentence):
    with pytest.raises(MemprofError) as error:
        plan(workload="transformer", preset="tiny", overrides=overrides, techniques=[label], axes=axes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
