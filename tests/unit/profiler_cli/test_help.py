"""The help of every command says what it takes in words, and its examples can be pasted."""

from __future__ import annotations

from functools import cache

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from memprof.profiler_cli.app import app

pytestmark = pytest.mark.with_one_jax

_NAMES = get_command(app).commands  # type: ignore[attr-defined]


@cache
def _help(name: str, columns: int = 100) -> str:
    return CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": str(columns), "NO_COLOR": "1"}).output


@pytest.mark.parametrize("name", _NAMES)
def test_options_and_arguments_say_their_values_and_not_their_types(name: str) -> None:
    assert not [each for each in ("<", "x<=", "[bold]") if each in _help(name)]


@pytest.mark.parametrize("name", _NAMES)
def test_nothing_is_cut_in_80_columns_and_examples_keep_their_lines(name: str) -> None:
    assert "\u2026" not in _help(name, 80)
    wide, narrow = ([line.strip() for line in _help(name, columns).splitlines()] for columns in (200, 80))
    assert {line for line in wide if line.startswith("memprof ")} <= set(narrow)


def test_a_second_name_of_an_option_is_said_in_its_sentence() -> None:
    assert "Also --techniques." in " ".join(_help("fit").replace("\u2502", "").split())


def test_choices_are_named_in_the_sentence() -> None:
    assert "or buffer." in " ".join(_help("show").replace("\u2502", "").split())
    assert "KIND        What to list: workloads, techniques, targets or optimizers." in _help("list")


def test_examples_stand_alone_on_their_lines() -> None:
    lines = [line.rstrip() for line in _help("compare").splitlines()]
    assert "     memprof compare before.memprof after.memprof" in lines
