"""What the integration tests share: real compiles, and the command line as a process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.command import Command
from integration.steps import Compiler, Step
from made_compiles import Commands

from memprof.sources.capture_file import write_capture


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """Compiles each step once."""
    return Compiler()


@pytest.fixture
def memprof(tmp_path: Path) -> Command:
    """The command line as a process, with an empty folder to run in and an empty temp folder of its own."""
    return Command.in_folder(tmp_path)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    """The command line in this process and an empty folder, for what compiles nothing and shows there as well."""
    folder = tmp_path / "in_process"
    folder.mkdir()
    return Commands(monkeypatch, capsys, folder)


@pytest.fixture
def start(memprof: Command) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command and does not leave it running, nor what it started."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        started.append(memprof.start(*arguments, **environment))
        return started[-1]

    yield start
    for running in started:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


@pytest.fixture(scope="session")
def capture_path(tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Path:
    """A capture file to look at and never to change."""
    path = tmp_path_factory.mktemp("captures") / "small.memprof"
    write_capture(compiler.capture(Step(workload="mlp", preset="tiny", target="cpu")), path)
    return path
