"""Start a script with `python`, forward signals to it, and wait for its end."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from memprof.analysis.records.capture import Target
from memprof.analysis.records.watched import Ending
from memprof.errors import MemprofError
from memprof.sources.jax.processes.process_tree import die_with, kill_tree
from memprof.sources.jax.watching import records
from memprof.sources.jax.watching.records import MIN_FREE_BYTES
from memprof.sources.jax.watching.shared_page import has_seen_enough, make_page

_STARTUP = str(Path(__file__).with_name("startup"))
_PATIENCE_SECONDS = 30.0  # for a script that was asked to end
_SIGNALLED = 128  # a shell adds this to the signal number for the exit code of a killed process
_SHARED_MEMORY = "/dev/shm"
_STDIN = "-"  # Python reads the script from stdin
_FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)
_AWAITED = _FORWARDED | {signal.SIGCHLD}
_FROM_KERNEL = 0x80  # `si_code` of a signal from the terminal to a whole process group (<asm-generic/siginfo.h>)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and its arguments.

    Attributes:
        name: a path, `-` for stdin, or the name of a module.
        is_module: whether `name` is a module.
        arguments: the script's arguments in `sys.argv`.
    """

    name: str
    is_module: bool
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """The script and its arguments as on a command line."""
        return " ".join([*(["-m"] if self.is_module else []), self.name, *self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAfter:
    """When to end a script: after a number of its own programs or after a time; if both are None, see `run_script`."""

    num_programs: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the process of a script ended.

    Attributes:
        exit_code: exit code; a negative number is the signal that killed the process.
        by_memprof: whether memprof ended it after it had seen enough.
    """

    exit_code: int
    by_memprof: bool


def run_script(script: Script, folder: Path, *, target: Target | None, stop_after: StopAfter) -> Ended:
    """Run a script to its end, and write its programs to a folder (see `records.py`).

    Plain Python runs the script; `startup/sitecustomize.py` watches it from inside. The script has the standard
    streams, the open files and the terminal of this process. If this process is killed, so is the script.

    Args:
        target: the target to compile the programs for, if any. The script itself then runs on the CPU, and is ended at
            its first training step unless `stop_after` says otherwise.

    Raises:
        MemprofError: the script does not exist.
        OSError: the folder's disk is full; the script was not started.
    """
    if not script.is_module and script.name != _STDIN and not os.path.exists(script.name):
        raise MemprofError(f"there is no script {script.name}: give its path, or -m and the name of a module")
    options = {
        "target": None if target is None else target.file or target.name,
        "num_programs": stop_after.num_programs,
        "may_end": target is not None and stop_after.seconds is None,
        "started": time.monotonic(),
    }
    (folder / records.OPTIONS).write_text(json.dumps(options), encoding="utf-8")
    make_page(folder)
    this = os.getpid()
    with _signals_blocked() as unblocked:

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            die_with(this)
            (folder / records.PROCESS).write_text(str(os.getpid()), encoding="utf-8")

        command = [sys.executable, *(["-m"] if script.is_module else []), script.name, *script.arguments]
        child = subprocess.Popen(command, env=_environment(folder, target), close_fds=False, preexec_fn=prepare)
        ended = _ended(child.pid, folder, stop_after.seconds)
    child.returncode = ended.exit_code
    if ended.by_memprof and not (folder / records.END).exists():
        records.write(folder / records.END, Ending(has_seen_enough=True))
    return ended


def roomy_folder() -> Path | None:
    """Return a folder with room for XLA's plans: for temporary files, the working folder, or shared memory.

    None if all are full; the watcher then notes the records that it cannot write.
    """
    for folder in (tempfile.gettempdir(), os.curdir, _SHARED_MEMORY):
        with suppress(OSError):
            if os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= MIN_FREE_BYTES:
                return Path(folder)
    return None


def end_by_signal(number: int) -> NoReturn:
    """End this process with the signal that ended a script, so that its parent sees the same."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(_SIGNALLED + number)  # the signal is blocked, as inherited from another process


def _environment(folder: Path, target: Target | None) -> dict[str, str]:
    """Return this process's environment with the variables for `startup/sitecustomize.py`."""
    environment = dict(os.environ)
    if sys.flags.utf8_mode and "PYTHONUTF8" not in environment and environment.get("LC_CTYPE") == "C.UTF-8":
        del environment["LC_CTYPE"]  # Python set it in the C locale (PEP 538)
    paths = [_STARTUP, *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "MEMPROF_WATCH": str(folder.absolute())}
    return environment if target is None else {**environment, "JAX_PLATFORMS": "cpu"}


@contextmanager
def _signals_blocked() -> Iterator[set[signal.Signals | int]]:
    """Block the signals that `_wait` receives, and yield the previous mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended(pid: int, folder: Path, seconds: float | None) -> Ended:
    """Wait for the end of a script, and end it if its watcher has stopped it or if its time is over."""
    code = _wait(pid, folder, seconds)
    if code is not None:
        return Ended(exit_code=code, by_memprof=False)
    if not has_seen_enough(folder):
        for number in (signal.SIGINT, signal.SIGTERM):
            if code is None:
                os.kill(pid, number)
                code = _wait(pid, folder, _PATIENCE_SECONDS)
    if code is None:
        kill_tree(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(exit_code=code, by_memprof=True)


def _wait(pid: int, folder: Path, seconds: float | None) -> int | None:
    """Wait for a process, and forward signals to it.

    Returns:
        Its exit code; None if it still runs after `seconds`, or if its watcher has stopped it.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found and not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        if found and has_seen_enough(folder):
            return None
        if end is None:
            info = signal.sigwaitinfo(_AWAITED)
        else:
            within = signal.sigtimedwait(_AWAITED, max(0.0, end - time.monotonic()))
            if within is None:
                return None
            info = within
        if info.si_signo in _FORWARDED and info.si_code != _FROM_KERNEL:
            with suppress(ProcessLookupError):
                os.kill(pid, info.si_signo)
