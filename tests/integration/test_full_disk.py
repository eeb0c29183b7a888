"""A disk that is full: what was there stays whole, the message names the file, and a report that was made is shown.

The disk is a file system of 128 KiB in a mount namespace of its own, filled to the last byte. The cache of plans is to
be there, too, and has nothing to say about it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .command import MAIN, Command

pytestmark = pytest.mark.with_one_jax

_MOUNT = """
mkdir -p full && mount -t tmpfs -o size=128k tmpfs full && cd full && cp ../../kept/* . || exit 77
export MEMPROF_CACHE_DIR=$PWD/cache
dd if=/dev/zero of=filler bs=1k count=128 2>/dev/null
"""
_TINY = ("mlp", "--preset", "tiny", "--target", "cpu")


def _in_namespace(command: Command, then: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run in the full disk; `then` is a shell script that sees the arguments."""
    script = f"{_MOUNT}{then}"
    return command(*arguments, program=("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a capture and its baseline."""
    parent = tmp_path_factory.mktemp("made")
    command = Command.in_folder(parent)
    assert command("run", *_TINY, "-o", "ok.memprof").returncode == 0
    assert command("check", "ok.memprof", "--against", "base.json", "--update").returncode == 0
    return command.folder


@pytest.fixture
def full(made: Path, tmp_path: Path) -> Command:
    command = Command.in_folder(tmp_path)
    shutil.copytree(made, tmp_path / "kept")
    if _in_namespace(command, "true").returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    return command


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("run", *_TINY), "mlp-tiny-cpu.memprof"),
        (("compare", *_TINY, "-t", "baseline"), "compare-mlp-tiny/mlp-tiny-baseline-cpu.memprof"),
        (("fit", *_TINY, "--vary", "batch_size", "--memory", "1MiB"), "fit-mlp-tiny/mlp-tiny"),
        (("trace", *_TINY, "--steps", 1), "logs/plugins/profile"),
        (("show", "ok.memprof", "--format", "html", "-o", "r.html"), "r.html"),
        (("show", "ok.memprof", "--format", "json", "-o", "ok.json", "--force"), "ok.json"),
        (("show", "ok.memprof", "--format", "xprof", "-o", "logs"), "logs/plugins/profile"),
        (("check", "ok.memprof", "--against", "base.json", "--update"), "base.json"),
    ],
    ids=lambda value: " ".join(map(str, value[:1])) if isinstance(value, tuple) else value,
)
@pytest.mark.slow_cases
def test_nothing_is_lost(full: Command, made: Path, arguments: tuple[object, ...], names: str) -> None:
    compare = "for f in ../../kept/*; do cmp $f $(basename $f) >&2 || exit 99; done"
    # What holds the claims of compiles is always empty.
    left = 'find . -type f -size 0 ! -name .claims -o -name ".memprof*" -o -name "*.part" >&2'
    done = _in_namespace(full, f'"$@"; code=$?; {compare}; {left}; exit $code', *MAIN, *arguments)
    assert done.returncode == 2
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("memprof: ")]
    assert names in sentence
    assert "No space left on device" in sentence
    assert sentence == done.stderr.splitlines()[-1]
    # The step was compiled: what it takes is not lost.
    assert ("footprint" in done.stdout) == (arguments[0] == "run")
