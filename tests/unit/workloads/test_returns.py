"""What can be told of a function without calling it: whether it returns a step."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import memprof
from memprof import StepSpec
from memprof import TrainSpec as Spec
from memprof.errors import MemprofError
from memprof.workloads.user.returns import check_returns_step

pytestmark = pytest.mark.with_one_jax


def _step(x: Any) -> Any:
    return x


def annotated() -> StepSpec:
    return _made()


def annotated_with_text() -> memprof.TrainSpec | None:
    return None


def _made(size: int = 1):  # type: ignore[no-untyped-def]
    return memprof.StepSpec(_step, (size,))


def by_another():  # type: ignore[no-untyped-def]
    return _made(2)


def by_another_name():  # type: ignore[no-untyped-def]
    return Spec(_step, {}, None, {})  # type: ignore[arg-type]


def imported_within():  # type: ignore[no-untyped-def]
    from memprof import StepSpec as Step

    return Step(_step, ())


def _enclosing():  # type: ignore[no-untyped-def]
    spec = _made()
    return lambda: spec


class Maker:
    def __call__(self):  # type: ignore[no-untyped-def]
        return _made()

    def method(self):  # type: ignore[no-untyped-def]
        return _made()


def main():  # type: ignore[no-untyped-def]
    raise AssertionError("it was called")


def annotated_otherwise() -> None:
    _made()


def loops():  # type: ignore[no-untyped-def]
    return loops()


@pytest.mark.parametrize(
    "function",
    [
        annotated,
        annotated_with_text,
        by_another,
        by_another_name,
        imported_within,
        _enclosing(),
        functools.partial(_made, 3),
        Maker(),
        Maker().method,
    ],
)
def test_what_has_to_do_with_a_step_is_called(function: Any) -> None:
    check_returns_step(function, "train:it")


@pytest.mark.parametrize("function", [main, annotated_otherwise, loops, _step, Maker, functools.partial(main)])
def test_all_else_is_not(function: Any) -> None:
    with pytest.raises(MemprofError, match=r"train:it was not called, .* annotate it .* -> memprof\.StepSpec"):
        check_returns_step(function, "train:it")
