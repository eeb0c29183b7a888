"""Scripts that misbehave run under `memprof watch` as they run without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from integration.command import QUICK, Command
from misbehaving_scripts import SCRIPTS

_SOURCE_FOLDER = str(Path(__file__).parents[2])
_WATCH = (sys.executable, "-P", "-m", "memprof.profiler_cli.main", "watch", "--keep", "0")
_SAID = re.compile(
    r"^(not recorded: |memprof: |report written to |the working folder was deleted|the script was killed).*\n",
    re.MULTILINE,
)
# The sources of what differs from run to run: addresses and process ids.
_VARYING = re.compile(r"0x[0-9a-f]+|\b(?<=pid=)\d+|\b(?<=Process )\d+")
_PATIENCE_SECONDS = 240  # as many as other compiles on the machine can cost a script of seconds
_NAMES = list(SCRIPTS)

_LOOP = """
import os, time
import jax, jax.numpy as jnp
step = jax.jit(lambda w: w - jax.grad(lambda w: (w * w).sum())(w))
open("pid", "w").write(str(os.getpid()))
w = jnp.ones(3)
while True:
    try:
        w = step(w)
        time.sleep(0.05)
    except BaseException:
        pass
"""


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Handle the signals that are ignored (`nohup`, a background job of a script): processes inherit that."""
    ignored = [each for each in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(each) is signal.SIG_IGN]
    for each in ignored:
        signal.signal(each, signal.SIG_DFL)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(_NAMES[::6], id="some"),
        pytest.param(sorted({*_NAMES} - {*_NAMES[::6]}), marks=pytest.mark.slow, id="others"),
    ],
)
@pytest.mark.slow
def test_scripts_that_misbehave_do_so_as_without_memprof(names: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1)) as threads:
        folders = [tmp_path / str(number) for number in range(len(names))]
        found = dict(zip(names, threads.map(_difference, names, folders), strict=True))
    assert {name: difference for name, difference in found.items() if difference} == {}


def _difference(name: str, parent: Path) -> str:
    """How the results of a script with and without memprof differ; empty if they are equal."""
    plain = _run((sys.executable,), name, parent)
    watched = _run((*_WATCH, "-o", str(parent / "report.md")), name, parent)
    return "" if watched == plain else f"{plain}\nwatched:\n{watched}"


def _run(program: tuple[str, ...], name: str, parent: Path) -> tuple[int, str, str]:
    """Run a script in a new folder of the same name each time. Returns its exit code, stdout and stderr."""
    script = SCRIPTS[name]
    folder, temp_folder = parent / "folder", parent / "temp"
    for each in (folder, temp_folder):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    files = {"script.py": script.code, "json.py": "MINE = 'the script has this module'\n", **script.files}
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(parent), "TMPDIR": str(temp_folder), "JAX_PLATFORMS": "cpu"}
    python_path = os.pathsep.join(filter(None, [script.environment.get("PYTHONPATH"), _SOURCE_FOLDER]))
    ended = subprocess.run(
        [*program, *script.run],
        cwd=folder,
        env={**environment, **QUICK, **script.environment, "PYTHONPATH": python_path},
        input=script.stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE_SECONDS,
    )
    stderr = _SAID.sub("", ended.stderr)
    return ended.returncode, _VARYING.sub("N", ended.stdout), _VARYING.sub("N", stderr)


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_loop_that_swallows_every_error_is_ended_at_its_training_step(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(_LOOP)
    ended = memprof("watch", "--target", "h100-80gb", "--format", "json", "--fail-if-not-fits", "train.py")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["verdict"]["answer"], found["ending"]["has_seen_enough"]) == ("fits", True)
    assert _has_ended(int((memprof.folder / "pid").read_text()))


@pytest.mark.with_one_jax
def test_programs_of_subprocesses_are_captured(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "@jax.jit\ndef train_step(w): return w - jax.grad(lambda w: (w * w).sum())(w)\n"
        "print(train_step(jnp.ones(3)))\n"
    )
    (memprof.folder / "launch.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, 'train.py']).returncode + 3)\n"
    )
    ended = memprof("watch", "--format", "json", "-o", "job.json", "launch.py", JAX_PLATFORMS="cpu")
    assert (ended.returncode, ended.stdout) == (3, "[-1. -1. -1.]\n"), ended.stderr
    found = json.loads((memprof.folder / "job.json").read_text())
    assert [each["name"] for each in found["programs"]] == ["train_step"]


@pytest.mark.with_one_jax
def test_signals_to_memprof_reach_the_script(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(
        "import signal, sys, time\n"
        "got = []\n"
        "for number in (1, 2, 10, 12, 15):\n    signal.signal(number, lambda number, frame: got.append(number))\n"
        "print('ready', flush=True)\n"
        "while 15 not in got: time.sleep(0.01)\n"
        "print(got, flush=True)\nsys.exit(5)\n"
    )
    with _started(memprof, "train.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for count, number in enumerate((signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)):
            time.sleep(0.1 if count else 0)  # the handlers of signals that wait together run by number
            process.send_signal(number)
        assert process.stdout.read() == "[1, 2, 10, 12, 15]\n"
        assert process.wait() == 5


@pytest.mark.with_one_jax
def test_a_script_does_not_outlive_a_killed_memprof(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    with _started(memprof, "train.py") as process:
        assert process.stdout is not None
        script = int(process.stdout.readline())
        process.kill()
        process.wait()
        end = time.monotonic() + _PATIENCE_SECONDS
        while not _has_ended(script) and time.monotonic() < end:
            time.sleep(0.05)
        assert _has_ended(script)


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_script_without_room_for_temporary_files_trains_to_its_end(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(SCRIPTS["no file may grow"].code)
    ended = memprof("watch", "--format", "json", "-o", "job.json", "train.py", JAX_PLATFORMS="cpu")
    assert (ended.returncode, ended.stdout) == (0, "6.0\n"), ended.stderr
    assert "not recorded: " in ended.stderr


@pytest.mark.with_one_jax
def test_a_reader_that_leaves_early_changes_nothing(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text("import sys\nprint('first', flush=True)\nsys.exit(7)\n")
    with _started(memprof, "train.py") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() in (1, 7, 120)  # as plain Python, by whether the script has written before


def _started(memprof: Command, script: str) -> subprocess.Popen[str]:
    command = [*_WATCH, "-o", str(memprof.folder / "report.md"), script]
    return subprocess.Popen(
        command, cwd=memprof.folder, env=memprof.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
