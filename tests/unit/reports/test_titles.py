"""Titles of columns that break."""

from __future__ import annotations

from memprof.reports.layout.lines import Paper
from memprof.reports.layout.table import break_title, narrowest_title

_PAPER = Paper(width=80, unicode=True)


def test_a_title_breaks_after_a_plus_a_hyphen_or_a_blank() -> None:
    assert break_title("bf16+remat-mlp+scan", 9, _PAPER) == ["bf16+", "remat-", "mlp+scan"]
    assert break_title("own parameters", 12, _PAPER) == ["own", "parameters"]
    assert break_title("own parameters", 24, _PAPER) == ["own parameters"]
    assert break_title("", 4, _PAPER) == [""]


def test_a_long_word_is_shortened() -> None:
    assert narrowest_title("a+" + "x" * 40, _PAPER) == 16
    assert break_title("y" * 40, 9, _PAPER) == ["yyyy…yyyy"]


def test_the_narrowest_width_is_that_of_the_longest_word() -> None:
    assert narrowest_title("bf16+donate+scan", _PAPER) == len("donate+")
    assert narrowest_title("", _PAPER) == 0
