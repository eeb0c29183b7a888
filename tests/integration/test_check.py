"""`memprof check` as a process: its exit codes, its baseline, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration.command import Command
from made_compiles import Commands

pytestmark = pytest.mark.with_one_jax

TINY = ("check", "mlp", "--preset", "tiny", "--target", "cpu")


def test_a_baseline_is_written_then_passes_then_catches_a_larger_batch(memprof: Command) -> None:
    written = memprof(*TINY, "--against", "base.json", "--update")
    assert (written.returncode, written.stdout) == (0, "")
    assert (memprof.folder / "base.json").stat().st_size < 20_000

    same = memprof(*TINY, "--against", "base.json")
    assert same.returncode == 0, same.stdout + same.stderr
    assert "Every check passed" in same.stdout

    larger = memprof(*TINY, "--set", "batch_size=256", "--against", "base.json", "--fail-on", "footprint:+2%")
    assert larger.returncode == 1
    assert "Changes by category" in larger.stdout
    assert "1 of 1 checks failed" in larger.stdout


def test_a_capture_is_checked_without_compiling(memprof: Command, capture_path: Path) -> None:
    assert memprof("check", capture_path, "--max", "1GiB").returncode == 0
    done = memprof("check", capture_path, "--max", "1KiB", "--format", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["schema"], found["passed"]) == ("memprof.check/1", False)
    against_itself = memprof("check", capture_path, "--against", capture_path)
    assert against_itself.returncode == 0
    assert "Changes" not in against_itself.stdout


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ((), "there is nothing to check"),
        (("--max", "lots"), "is not a memory size"),
        (("--fits", "h1000"), "There is no target 'h1000'"),
        (("--against", "missing.json"), "there is no baseline missing.json"),
        (("--fail-on", "footprint:+2%"), "limits the growth against a baseline"),
        (("--max", "1GiB", "--format", "svg"), "a check is not shown as svg"),
        (("--update",), "name its file with --against"),
    ],
)
def test_mistakes_are_one_sentence(in_process: Commands, arguments: tuple[str, ...], fragment: str) -> None:
    done = in_process(*TINY, *arguments)
    assert (done.code, done.asked) == (2, ())
    assert fragment in done.stderr
    assert done.stderr.count("\n") == 1
