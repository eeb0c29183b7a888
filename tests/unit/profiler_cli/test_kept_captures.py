"""A command that is repeated keeps the files that have not changed; two commands never share a folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from made_compiles import Commands

COMPARE = ("compare", "mlp", "--target", "cpu", "-t", "baseline", "-t", "bf16")
FIT = ("fit", "mlp", "--target", "cpu", "--memory", "1MiB")


@pytest.fixture
def memprof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    (tmp_path / "train.py").write_text("mine = 1\n")
    return Commands(monkeypatch, capsys, tmp_path)


def test_the_same_comparison_keeps_its_files_and_says_so(memprof: Commands) -> None:
    first = memprof(*COMPARE, keeps_files=True)
    again = memprof(*COMPARE, keeps_files=True)
    assert "captures written to compare-mlp;" in first.stderr
    assert "the captures in compare-mlp are unchanged;" in again.stderr
    assert (again.stdout, again.files) == (first.stdout, first.files)


@pytest.mark.parametrize("output", [(), ("-o", "rows")])
def test_one_that_was_interrupted_goes_on_in_the_same_folder(
    memprof: Commands, monkeypatch: pytest.MonkeyPatch, output: tuple[str, ...]
) -> None:
    first = memprof(*COMPARE, *output, keeps_files=True)
    (removed,) = memprof.folder.glob("*/mlp-tiny-bf16-h100-80gb.memprof")
    removed.unlink()
    monkeypatch.setenv("MARK", "b")  # a variable that changes nothing
    assert memprof(*COMPARE, *output).files == first.files


def test_a_capture_that_has_changed_does_not_replace_the_earlier_one(memprof: Commands) -> None:
    first = memprof(*COMPARE[:-4], "-t", "bf16", "-o", "rows", keeps_files=True)
    other = memprof(*COMPARE[:-4], "--set", "batch_size=64", "-t", "bf16", "-o", "rows", keeps_files=True)
    names = ["rows/mlp-tiny-bf16-h100-80gb-2.memprof", "rows/mlp-tiny-bf16-h100-80gb.memprof"]
    assert sorted(name for name in other.files if name.startswith("rows")) == names
    again = memprof(*COMPARE[:-4], "--set", "batch_size=64", "-t", "bf16", "-o", "rows")
    assert (again.files, other.files[names[1]]) == (other.files, first.files[names[1]])


@pytest.mark.parametrize(
    "arguments",
    [
        (*COMPARE, "--set", "batch_size=16"),
        (*COMPARE[:2], "--target", "l4", *COMPARE[4:]),
        (*COMPARE[:-2], "-t", "donate"),
    ],
    ids=["another batch", "another target", "another row"],
)
def test_another_request_has_a_folder_of_its_own(memprof: Commands, arguments: tuple[str, ...]) -> None:
    memprof(*COMPARE, keeps_files=True)
    other = memprof(*arguments)
    assert sum(name.startswith("compare-mlp-2/") for name in other.files) == 2


def test_a_folder_that_another_command_writes_to_is_not_shared(memprof: Commands) -> None:
    memprof(*COMPARE, keeps_files=True)
    descriptor = os.open(memprof.folder / "compare-mlp", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    other = memprof(*COMPARE)
    os.close(descriptor)
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
    assert ended.code == 0
    assert {Path(name).parts[0] for name in ended.files} == {"compare-mlp-2", "train.py"}


def test_a_fit_that_is_repeated_keeps_its_files(memprof: Commands) -> None:
    first = memprof(*FIT, keeps_files=True)
    assert sum(name.startswith("fit-mlp/") for name in first.files) > 2
    assert memprof(*FIT).files == first.files
