"""`--set field=value`: typed by the field, checked, and rejected in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from memprof.errors import MemprofError
from memprof.workloads.overrides import apply_overrides
from memprof.workloads.train_config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    batch_size: int = 1
    rate: float = 0.5
    flag: bool = False
    name: str = "a"
    size: int | None = 3
    kind: Literal["one", "two"] = "one"

    def __post_init__(self) -> None:
        if (self.batch_size == 7) != (self.rate == 0.7):
            raise MemprofError("seven needs seven")


def changed(*overrides: str) -> Config:
    return apply_overrides(overrides, Config(), TrainConfig())[0]


def rejection(*overrides: str) -> str:
    with pytest.raises(MemprofError) as error:
        apply_overrides(overrides, Config(), TrainConfig())
    return str(error.value)


def test_values_take_the_type_of_their_field():
    config = changed("batch_size=1_024", "rate=1e-1", "flag=True", "name=b=c", "size=none", "kind=two")
    assert config == Config(batch_size=1024, rate=0.1, flag=True, name="b=c", size=None, kind="two")
    assert isinstance(changed("rate=1").rate, float)
    assert changed("size=5", "flag=false") == Config(size=5)


def test_settings_of_the_training_can_be_set_too():
    config, train_config = apply_overrides(("batch_size=2", "learning_rate=3e-4"), Config(), TrainConfig())
    assert (config, train_config) == (Config(batch_size=2), TrainConfig(learning_rate=3e-4))


def test_nothing_to_set_changes_nothing():
    assert apply_overrides((), Config(), TrainConfig()) == (Config(), TrainConfig())


def test_values_that_need_each_other_are_checked_together():
    assert changed("batch_size=7", "rate=0.7") == Config(batch_size=7, rate=0.7)
    assert rejection("batch_size=7") == "seven needs seven"


@pytest.mark.parametrize(
    "text", ["batch_size=1.5", "batch_size=x", "batch_size=1e3", "batch_size=none", "batch_size=1__0"]
)
def test_a_whole_number_is_expected(text):
    assert rejection(text) == (
        f"{text} has no valid value: batch_size expects a whole number below 2**63, for example 1024 or 1_024."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate=nan", "rate expects a number, for example 0.1 or 3e-4."),
        ("rate=half", "rate expects a number, for example 0.1 or 3e-4."),
        ("flag=1", "flag expects true or false."),
        (f"size={10**29}", "size expects a whole number below 2**63, for example 1024 or 1_024, or none."),
        ("size=big", "size expects a whole number below 2**63, for example 1024 or 1_024, or none."),
        ("kind=three", "kind expects one of one, two."),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected(text, expected):
    assert rejection(text) == f"{text} has no valid value: {expected}"


def test_an_unknown_field_names_the_closest_and_all_the_others():
    assert rejection("batchsize=2") == (
        "There is no field 'batchsize' (did you mean 'batch_size'?): choose from batch_size, rate, flag, name, size, "
        "kind, optimizer, learning_rate, weight_decay, seed."
    )


@pytest.mark.parametrize("text", ["batch_size", "=3", "batch_size=", ""])
def test_a_text_that_sets_nothing_is_rejected(text):
    assert rejection(text) == f"'{text}' is not a setting: write field=value, for example batch_size=16."


def test_a_field_that_is_set_twice_is_rejected():
    assert rejection("batch_size=2", "batch_size=3") == "Field 'batch_size' is set twice: give it one value."


def test_what_a_technique_decides_cannot_be_set():
    message = rejection("donate=true")
    assert (
        message
        == "Field 'donate' cannot be set, because techniques decide it: choose from baseline, donate, no-donate."
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learning_rate=0", "learning_rate is 0.0, but it must be a number above zero."),
        ("weight_decay=-1", "weight_decay is -1.0, but it must not be negative."),
        ("seed=-1", "seed is -1, but it must be between 0 and 2147483647."),
    ],
)
def test_the_training_checks_its_settings(text, sentence):
    assert rejection(text) == sentence
