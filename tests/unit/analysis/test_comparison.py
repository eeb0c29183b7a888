"""Verdicts of several techniques become one effect of their row."""

from __future__ import annotations

import pytest
from reports_data import one_buffer

from memprof.analysis.comparison import Verdict, compare

_REPORT = one_buffer()


@pytest.mark.parametrize(
    ("told", "took_effect"),
    [
        ((), None),
        ((None,), None),
        ((True, None), True),
        ((True, True), True),
        ((True, False, None), False),
    ],
)
def test_one_technique_without_effect_is_enough(told: tuple[bool | None, ...], took_effect: bool | None) -> None:
    verdicts = tuple(Verdict(took_effect=each, evidence=str(each)) for each in told)
    (effect,) = compare([_REPORT], baseline=_REPORT.label, verdicts={_REPORT.label: verdicts}).effects
    assert effect.took_effect is took_effect


def test_what_took_no_effect_is_said_first() -> None:
    verdicts = tuple(Verdict(took_effect=each, evidence=str(each)) for each in (True, None, False, True))
    (effect,) = compare([_REPORT], baseline=_REPORT.label, verdicts={_REPORT.label: verdicts}).effects
    assert effect.evidence == "False; True; None; True"
