"""Why a function was compiled again, from calls by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.analysis.records.watched import SeenCall
from memprof.studies.watch.recompiles import Recompile, recompiles

_FIRST = SeenCall(
    id="1-0",
    function="train_step",
    place="train.py:9",
    jit=1,
    arguments={"w": "float32[8,8]", "x": "float32[32,8]", "lr": "float32[]"},
    statics={"train": "True"},
)


def _again(number: int, **changed: str) -> SeenCall:
    return replace(_FIRST, id=f"1-{number}", arguments={**_FIRST.arguments, **changed})


def test_what_is_compiled_once_has_no_reason() -> None:
    assert recompiles([_FIRST]) == ()


def test_a_shape_that_grows_at_each_step_is_one_reason_with_its_values() -> None:
    calls = [_FIRST, *(_again(rows, x=f"float32[{rows},8]") for rows in range(33, 40))]
    (found,) = recompiles(calls)
    assert found == Recompile(
        times=7, reason="x changed: float32[32,8], then float32[33,8], then float32[34,8] and 5 more"
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (_again(1, lr="float32[] (weak type)"), "lr changed: float32[], then float32[] (weak type)"),
        (replace(_FIRST, id="1-1", statics={"train": "False"}), "train changed: True, then False"),
        (_again(1, mask="bool[32]"), "mask changed: not there, then bool[32]"),
        (_again(1, w="float32[4,8]", x="float32[1,8]"), "w changed: float32[8,8], then float32[4,8]; so did x"),
        (replace(_FIRST, id="1-1", jit=2), "jitted anew each time"),
        (_FIRST, "placed differently on the devices"),
        (replace(_FIRST, id="1-1"), "a setting of JAX"),
    ],
)
def test_each_kind_of_reason_has_its_words(call: SeenCall, reason: str) -> None:
    (found,) = recompiles([_FIRST, call])
    assert found.times == 1
    assert reason in found.reason


@pytest.mark.parametrize(
    ("num_changed", "others"),
    [
        (1, ""),
        (2, "; so did b"),
        (4, "; so did b, c, d"),
        (5, "; so did b, c, d and 1 more"),
        (7, "; so did b, c, d and 3 more"),
    ],
)
def test_of_many_changed_arguments_three_are_named_beside_the_first(num_changed: int, others: str) -> None:
    names = "abcdefg"
    first = replace(_FIRST, arguments=dict.fromkeys(names, "float32[1]"), statics={})
    second = replace(
        first, id="1-1", arguments=dict.fromkeys(names, "float32[1]") | dict.fromkeys(names[:num_changed], "float32[2]")
    )
    (found,) = recompiles([first, second])
    assert found.reason == f"a changed: float32[1], then float32[2]{others}"


@pytest.mark.parametrize(("num_calls", "more"), [(3, ""), (4, " and 1 more"), (5, " and 2 more")])
def test_of_many_values_three_are_named(num_calls: int, more: str) -> None:
    (found,) = recompiles([_FIRST, *(_again(rows, x=f"float32[{rows},8]") for rows in range(1, num_calls))])
    assert found.reason == f"x changed: float32[32,8], then float32[1,8], then float32[2,8]{more}"


def test_a_call_is_compared_with_the_most_similar_one_before() -> None:
    short = _again(1, x="float32[16,8]", w="float32[16,16]")
    found = recompiles([_FIRST, short, replace(short, id="1-2", statics={"train": "False"})])
    assert [each.reason for each in found][1] == "train changed: True, then False"
