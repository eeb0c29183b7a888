"""What a command says on stderr is what it was told to say."""

from __future__ import annotations

import re

import pytest

from memprof.profiler_cli.console import row_stages, say, time_to_go, write_table

pytestmark = pytest.mark.with_one_jax


@pytest.fixture(autouse=True)
def _after_any_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have run a command with -q."""
    monkeypatch.setattr("memprof.profiler_cli.console._is_quiet", False)


def test_names_between_colons_and_brackets_are_neither_pictures_nor_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say("train:train: [bold]importing")
    write_table(("name",), (("step:rocket:",),))
    captured = capsys.readouterr()
    assert captured.err == "train:train: [bold]importing\n"
    assert captured.out == "name\nstep:rocket:\n"


def test_rows_say_how_many_have_ended_and_how_long_the_others_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    with row_stages(["a", "b"]) as progress:
        for label in ("a", "b", "a", "b"):  # both wait, and say so again and again
            progress(label, "waiting")
        progress("a", "done")
        progress("b", "failed")
    said = re.sub(r"about \d+ s", "about N s", capsys.readouterr().err)
    assert said == "a: waiting ...\nb: waiting ...\na: done (1 of 2 rows, about N s to go)\nb: failed\n"


@pytest.mark.parametrize(
    ("num_ended", "seconds", "text"),
    [
        (1, 10.0, "1 of 6 rows, about 50 s to go"),
        (2, 60.0, "2 of 6 rows, about 2 min to go"),
        (5, 50.0, "5 of 6 rows, about 10 s to go"),
        (6, 60.0, ""),
    ],
)
def test_the_pace_so_far_tells_the_time_to_go(num_ended: int, seconds: float, text: str) -> None:
    assert time_to_go(num_ended, 6, seconds) == text
