"""The help of every command says what it takes in words, and its examples can be pasted."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from memprof.errors import MemprofError
from memprof.profiler_cli.app import app

pytestmark = pytest.mark.with_one_jax

_COMMAND = get_command(app)
_NAMES = _COMMAND.commands  # type: ignore[attr-defined]


_MAIN_HELP = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output


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
    assert "or layout." in " ".join(_help("show").replace("\u2502", "").split())
    assert "format of the model: onnx." in " ".join(_help("export").split())
    assert "all: workloads, techniques, targets or optimizers." in " ".join(_help("list").split())


def test_examples_stand_alone_on_their_lines() -> None:
    lines = [line.rstrip() for line in _help("compare").splitlines()]
    assert "    memprof compare before.memprof after.memprof" in lines


@pytest.mark.parametrize("name", _NAMES)
def test_a_command_lists_at_most_14_options_and_its_summary_is_one_line(name: str) -> None:
    listed = [line for line in _help(name).splitlines() if line.startswith("  -") and not line.startswith("  -- ARGS")]
    assert 0 <= len(listed) - 1 <= 14  # one of them is --help
    [summary] = [line for line in _MAIN_HELP.splitlines() if line.startswith(f"  {name} ")]
    assert summary.endswith(".")
    assert not summary.endswith("...")
    assert len(summary) <= 76  # a shell has two columns less than Typer's test runner


def test_the_documentation_lists_every_hidden_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    hidden = {
        max(param.opts, key=len): param.envvar
        for command in _NAMES.values()
        for param in command.params
        if getattr(param, "hidden", False)
    }
    assert not [name for name, variable in hidden.items() if f"`{name}" not in page or (variable or "") not in page]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "mlp", "--batch-size", "4"], "is set with --set batch_size=4"),
        (["run", "mlp", "--batch-size=4"], "is set with --set batch_size=4"),
        (["run", "mlp", "--trget", "l4"], "did you mean --target?"),
        (["export", "mlp", "--mesh", "8"], "no option --mesh: see `memprof export --help`"),
        (["export", "mlp", "--hosts=2"], "no option --hosts: see `memprof export --help`"),
        (["show", "--colour"], "see `memprof show --help`"),
        (["train.py"], "`memprof watch train.py`"),
        (["diff", "a.memprof", "b.memprof"], "`memprof show AFTER.memprof --diff BEFORE.memprof`"),
        (["compar"], "did you mean 'compare'?"),
    ],
)
def test_a_mistaken_name_gets_the_right_one(arguments: list[str], sentence: str) -> None:
    with pytest.raises(MemprofError) as raised:
        app(arguments, standalone_mode=False)
    assert sentence in str(raised.value)
