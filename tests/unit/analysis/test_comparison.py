"""Verdicts of several techniques become one effect of their row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reports_data import one_buffer

from memprof.analysis.comparison import Verdict, compare
from memprof.analysis.records.categories import Category

_REPORT = one_buffer()


@pytest.mark.parametrize(
    ("told", "took_effect"),
    [
        ((), None),
        ((None,), None),
        ((True, None), None),
        ((True, True), True),
        ((True, False, None), False),
    ],
)
def test_one_technique_without_effect_is_enough(told: tuple[bool | None, ...], took_effect: bool | None) -> None:
    verdicts = tuple(Verdict(took_effect=each, evidence=str(each)) for each in told)
    (effect,) = compare([_REPORT], baseline=_REPORT.label, verdicts={_REPORT.label: verdicts}).effects
    assert effect.took_effect is took_effect


def test_every_row_is_set_against_the_baseline_wherever_it_stands() -> None:
    half = replace(_REPORT, label="half", footprint_bytes=_REPORT.footprint_bytes // 2)
    effects = compare([half, _REPORT], baseline=_REPORT.label).effects
    delta_bytes = half.footprint_bytes - _REPORT.footprint_bytes
    assert [(effect.label, effect.footprint_delta_bytes, effect.footprint_ratio) for effect in effects] == [
        ("half", delta_bytes, 0.5),
        (_REPORT.label, 0, 1.0),
    ]


def test_a_rows_categories_are_counted_from_the_baseline() -> None:
    grown = {**_REPORT.categories, Category.PARAMS: _REPORT.categories[Category.PARAMS] + 5}
    effect, itself = compare(
        [replace(_REPORT, label="grown", categories=grown), _REPORT], baseline=_REPORT.label
    ).effects
    assert effect.categories_delta == dict.fromkeys(Category, 0) | {Category.PARAMS: 5}
    assert itself.categories_delta == dict.fromkeys(Category, 0)


def test_what_took_no_effect_is_said_first() -> None:
    verdicts = tuple(Verdict(took_effect=each, evidence=str(each)) for each in (True, None, False, True))
    (effect,) = compare([_REPORT], baseline=_REPORT.label, verdicts={_REPORT.label: verdicts}).effects
    assert effect.evidence == "False; True; None; True"
