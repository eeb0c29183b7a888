"""In a script, the stages of a compile are on stderr: one line of a terminal, or a line for each in a log."""

from __future__ import annotations

import io
import sys

import pytest

from memprof.progress import stages_shown

pytestmark = pytest.mark.with_one_jax


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def compile_something() -> str:
    with stages_shown("a step") as progress:
        progress("tracing")
        progress("compiling")
        return "compiled"


def test_a_log_has_a_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    compile_something()
    assert capsys.readouterr() == ("", "a step: tracing ...\na step: compiling ...\n")


def test_a_log_has_one_line_for_a_compile_that_waits(capsys: pytest.CaptureFixture[str]) -> None:
    with stages_shown("a step") as progress:
        for stage in ("waiting", "waiting", "waiting", "compiling"):
            progress(stage)
    assert capsys.readouterr().err == "a step: waiting ...\na step: compiling ...\n"


def test_on_a_terminal_it_is_one_line_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    compile_something()
    assert terminal.getvalue().split("\r\x1b[2K") == ["", "a step: tracing ...", "a step: compiling ...", ""]


def test_it_goes_when_the_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def fail() -> None:
        with stages_shown("a step") as progress:
            progress("compiling")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert terminal.getvalue().endswith(" ...\r\x1b[2K")


@pytest.mark.parametrize("is_there", [True, False])
def test_without_a_stderr_that_is_open_the_work_goes_on(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if is_there else None)
    assert compile_something() == "compiled"
