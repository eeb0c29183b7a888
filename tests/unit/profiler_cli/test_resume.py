"""A command that is repeated takes what is finished, and only that; two commands never share a folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from made_compiles import Commands, Ended

from memprof.capture.tracing.inputs import Inputs, are_unchanged

COMPARE = ("compare", "mlp", "--target", "cpu", "-t", "baseline", "-t", "bf16")
FIT = ("fit", "mlp", "--target", "cpu", "--memory", "1MiB")


@pytest.fixture
def memprof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    (tmp_path / "train.py").write_text("mine = 1\n")
    return Commands(monkeypatch, capsys, tmp_path)


def num_compiles(ended: Ended) -> int:
    assert ended.code == 0, ended.stderr
    return sum("build" in each for each in ended.asked)


def test_the_same_comparison_compiles_nothing_again_and_says_so(memprof: Commands) -> None:
    first = memprof(*COMPARE, keeps_files=True)
    again = memprof(*COMPARE, keeps_files=True)
    assert (num_compiles(first), num_compiles(again)) == (2, 0)
    assert again.stdout == first.stdout
    assert "taken from compare-mlp, not compiled again (--no-resume does): mlp baseline, mlp bf16" in again.stderr
    assert again.files == first.files


def test_one_that_was_cut_short_compiles_the_rest_in_the_same_folder(memprof: Commands) -> None:
    first = memprof(*COMPARE, keeps_files=True)
    (memprof.folder / "compare-mlp" / "mlp-tiny-bf16-h100-80gb.memprof").unlink()
    again = memprof(*COMPARE)
    assert num_compiles(again) == 1
    assert again.files == first.files


@pytest.mark.parametrize(
    "arguments",
    [
        (*COMPARE, "--set", "batch_size=16"),
        (*COMPARE[:2], "--target", "l4", *COMPARE[4:]),
        (*COMPARE[:-2], "-t", "donate"),
        (*COMPARE, "--no-resume"),
    ],
    ids=["another batch", "another target", "another row", "not wanted"],
)
def test_anything_else_is_compiled_in_a_folder_of_its_own(memprof: Commands, arguments: tuple[str, ...]) -> None:
    memprof(*COMPARE, keeps_files=True)
    other = memprof(*arguments)
    assert num_compiles(other) == 2
    assert sum(name.startswith("compare-mlp-2/") for name in other.files) == 2


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "JAX_ENABLE_X64"])
def test_what_the_compiler_is_told_by_the_environment_counts(
    memprof: Commands, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    memprof(*COMPARE, keeps_files=True)
    monkeypatch.setenv(variable, "1")
    assert num_compiles(memprof(*COMPARE)) == 2


def test_a_folder_that_another_command_writes_to_is_not_shared(memprof: Commands) -> None:
    memprof(*COMPARE, keeps_files=True)
    descriptor = os.open(memprof.folder / "compare-mlp", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    other = memprof(*COMPARE)
    os.close(descriptor)
    assert num_compiles(other) == 2
    assert sum(name.startswith("compare-mlp-2/") for name in other.files) == 2


def test_a_folder_that_another_command_has_made_anew_meanwhile_is_not_shared(
    memprof: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was there ended, and removed it, between its opening and its locking."""
    folder, lock = memprof.folder / "compare-mlp", fcntl.flock
    locked: list[int] = []

    def lock_too_late(descriptor: int, operation: int) -> None:
        if not locked:
            folder.rmdir()
            folder.mkdir()
            locked.append(os.open(folder, os.O_RDONLY))
            lock(locked[0], fcntl.LOCK_EX)
        lock(descriptor, operation)

    folder.mkdir()
    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    ended = memprof(*COMPARE)
    os.close(*locked)
    assert num_compiles(ended) == 2
    assert {Path(name).parts[0] for name in ended.files} == {"compare-mlp-2", "train.py"}


def test_a_fit_goes_on_where_it_was(memprof: Commands) -> None:
    first = memprof(*FIT, keeps_files=True)
    again = memprof(*FIT)
    assert num_compiles(first) > 2
    assert num_compiles(again) == 0
    assert first.files == again.files


def test_a_users_step_of_unknown_files_is_compiled_again(memprof: Commands) -> None:
    command = ("compare", "train.py:spec", "--target", "cpu", "-t", "baseline")
    memprof(*command, keeps_files=True)
    assert num_compiles(memprof(*command)) == 1


def test_a_file_that_was_read_and_has_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    path = tmp_path / "config.yaml"
    path.write_text("batch: 8")
    inputs = Inputs()
    inputs.hear("open", (str(path), "r", 0))
    digests = inputs.digests()
    assert str(path) in digests
    assert are_unchanged(digests)
    path.write_text("batch: 9")
    assert not are_unchanged(digests)
    path.unlink()
    assert not are_unchanged(digests)
    assert not are_unchanged({})
