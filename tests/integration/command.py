"""The command line as a process: in a folder of its own, with a temp folder of its own, watched from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simple_kernels import SIMPLE_KERNEL_FLAGS

import memprof

MAIN = (sys.executable, "-m", "memprof.profiler_cli.main")
_SOURCE_FOLDER = Path(memprof.__file__).parents[1]
_NOT_INHERITED = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING", "PYTHONWARNINGS", "XLA_FLAGS")
_PATIENCE_SECONDS = 300
# What LLVM does comes after the memory is planned and takes half of a small compile.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}

# The main modules of child processes; the one that compiles has so many of that name in its line, itself included.
CHILDREN = {"memprof.sources.jax.child": 2, "memprof.sources.jax.fork_server": 3}

# For `run_before_start`. A child says so in its work folder, where its temporary files go, when its first step is over.
TELLING_OF_ITS_STEP = """
import os, pathlib
if IS_CHILD:
    import memprof.sources.jax.processes.task
    decoded = memprof.sources.jax.processes.task.decoded_task
    def watched(line):
        import memprof.sources.jax.running.run
        take = memprof.sources.jax.running.run.Arguments.take
        def telling(self, result):
            pathlib.Path(os.environ["TMPDIR"], "has_run_a_step").touch()
            return take(self, result)
        memprof.sources.jax.running.run.Arguments.take = telling
        return decoded(line)
    memprof.sources.jax.processes.task.decoded_task = watched
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Runs `memprof` in `folder`, with `temp_folder` as its temp folder. `environment` is what it starts with."""

    folder: Path
    temp_folder: Path
    environment: Mapping[str, str]

    @classmethod
    def in_folder(cls, parent: Path) -> Command:
        """A command with two empty folders under `parent`."""
        folder, temp_folder = parent / "folder", parent / "temp"
        folder.mkdir()
        temp_folder.mkdir()
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment = {**inherited, **QUICK, "TMPDIR": str(temp_folder), "PYTHONPATH": str(_SOURCE_FOLDER)}
        return cls(folder=folder, temp_folder=temp_folder, environment=environment)

    def with_simple_kernels(self) -> Command:
        """The same for steps that run, which is when XLA makes kernels for the CPU."""
        return replace(self, environment={**self.environment, "XLA_FLAGS": SIMPLE_KERNEL_FLAGS})

    def __call__(
        self, *arguments: object, program: tuple[str, ...] = MAIN, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end. Its output comes back as text, without the lines of progress (see `without_progress`)."""
        ended = subprocess.run(
            [*program, *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_PATIENCE_SECONDS,
        )
        ended.stderr = without_progress(ended.stderr)
        return ended

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """Start it, in a process group of its own, and let it run."""
        return subprocess.Popen(
            [*MAIN, *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )

    def run_before_start(self, code: str) -> dict[str, str]:
        """The environment in which every Python process runs `code` before anything else; it knows `IS_CHILD`."""
        folder = self.folder.parent / "site"
        folder.mkdir()
        is_child = f"import sys\nIS_CHILD = not {set(CHILDREN)}.isdisjoint(sys.orig_argv)\n"
        (folder / "sitecustomize.py").write_text(is_child + code, encoding="utf-8")
        return {"PYTHONPATH": os.pathsep.join((str(folder), self.environment["PYTHONPATH"]))}

    def has_told(self, what: str) -> bool:
        """Whether a child process has left a file of that name in its work folder."""
        return any(self.temp_folder.glob(f"memprof-*/{what}"))

    def compiling_process(self) -> int | None:
        """The id of the process that compiles; None while there is none.

        Its parent, with the same name, watches it. Where that one is a fork, so is its parent.
        """
        named = {pid: name for pid, arguments in self.processes() for name in CHILDREN if name in arguments}
        ancestors = {pid: [pid] for pid in named}
        for line in ancestors.values():
            while (parent := parent_of(line[-1])) in named:
                line.append(parent)
        return next((pid for pid, line in ancestors.items() if len(line) == CHILDREN[named[pid]]), None)

    def processes(self) -> list[tuple[int, list[str]]]:
        """The processes that run with this command's temp folder or under it: (id, arguments)."""
        found = []
        for pid in processes_with(self.temp_folder):
            try:
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")))
            except OSError:  # it has ended
                continue
        return found

    def left_behind(self) -> list[Path]:
        """What there is in its temp folder."""
        return sorted(self.temp_folder.rglob("*"))


def without_progress(stderr: str) -> str:
    """What a command says beside the stages that it goes through."""
    stage = re.compile(r".* \.\.\.\n|.*: (done|failed)( \(\d+ of .*\))?\n")
    return "".join(line for line in stderr.splitlines(keepends=True) if not stage.fullmatch(line))


def processes_with(temp_folder: Path) -> list[int]:
    """The processes that have that folder, or one in it, for their temporary files."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is somebody else's
            continue
        if any(each.startswith(f"TMPDIR={temp_folder}") for each in environment):
            found.append(int(folder.name))
    return found


def parent_of(pid: int) -> int | None:
    """The process that started another one; None where that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def wait_until(condition: Callable[[], object], *, seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait until the condition holds.

    Raises:
        TimeoutError: it does not.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.02)
