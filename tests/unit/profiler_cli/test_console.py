"""What a command says on stderr is what it was told to say."""

from __future__ import annotations

import pytest

from memprof.profiler_cli.console import say, write_table

pytestmark = pytest.mark.with_one_jax


def test_names_between_colons_and_brackets_are_neither_pictures_nor_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say("train:train: [bold]importing")
    write_table(("name",), (("step:rocket:",),))
    captured = capsys.readouterr()
    assert captured.err == "train:train: [bold]importing\n"
    assert captured.out == "name\nstep:rocket:\n"
