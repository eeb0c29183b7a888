"""Which of the repeated modules are worth recomputing."""

from __future__ import annotations

from memprof.studies.advice.recomputation import _ladder, _Rung


def _rung(family: str, saving_bytes: int, flops: int) -> _Rung:
    return _Rung(family=family, paths=(), without=lambda buffer: None, saving_bytes=saving_bytes, flops=flops)


def test_what_saves_less_than_something_cheaper_is_left_out() -> None:
    block, attention, mlp = _rung("block", 50, 30), _rung("attention", 40, 10), _rung("mlp", 20, 20)
    assert _ladder([block, attention, mlp]) == [attention, block]


def test_two_that_save_the_same_are_both_named() -> None:
    """Something else makes the peak then, and the compiler may move it: it did in GPT-2."""
    block, attention = _rung("block", 40, 30), _rung("attention", 40, 10)
    assert _ladder([block, attention]) == [attention, block]
