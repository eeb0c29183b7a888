"""Start a script with `python`, pass signals on to it, and wait for its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType

from memprof.analysis.records.capture import Target
from memprof.analysis.records.watched import Ending
from memprof.capture.processes.process_tree import die_with, kill_tree
from memprof.capture.watching import records
from memprof.capture.watching.faults import make_page
from memprof.errors import MemprofError

_STARTUP = str(Path(__file__).with_name("startup"))
_PATIENCE_SECONDS = 30.0  # for a script that was asked to end
_POLL_SECONDS = 0.05
_PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is run.

    Attributes:
        name: a path, or the name of a module.
        is_module: whether it is the latter.
        arguments: what it finds in `sys.argv`.
    """

    name: str
    is_module: bool
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """As it stands on a command line."""
        return " ".join([*(["-m"] if self.is_module else []), self.name, *self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAfter:
    """When a script is ended: after N programs of its own, or after a time; both None: see `run_script`."""

    num_programs: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the process of a script ended.

    Attributes:
        exit_code: a negative number is that of the signal that killed it.
        by_memprof: whether it was ended because memprof had seen enough.
    """

    exit_code: int
    by_memprof: bool


def run_script(script: Script, folder: Path, *, target: Target | None, stop_after: StopAfter) -> Ended:
    """Run a script to its end, and have its programs written into a folder (see `records.py`).

    Python runs it by itself; `startup/sitecustomize.py` watches it from inside. The script has the standard streams,
    the open files and the terminal of this process. If this process is killed, so is the script.

    Args:
        target: compile the programs for this target; the script itself runs on the CPU, and is ended with its first
            training step unless `stop_after` says otherwise.

    Raises:
        MemprofError: the script does not exist.
    """
    if not script.is_module and not os.path.exists(script.name):
        raise MemprofError(f"there is no script {script.name}: give its path, or -m and the name of a module")
    options = {
        "target": None if target is None else target.file or target.name,
        "num_programs": stop_after.num_programs,
        "may_end": target is not None and stop_after.seconds is None,
    }
    (folder / records.OPTIONS).write_text(json.dumps(options), encoding="utf-8")
    make_page(folder)
    command = [sys.executable, *(["-m"] if script.is_module else []), script.name, *script.arguments]
    this = os.getpid()
    child = subprocess.Popen(
        command, env=_environment(folder, target), close_fds=False, preexec_fn=lambda: die_with(this)
    )
    with _signals_passed_on(child.pid):
        ended = _ended(child.pid, stop_after.seconds)
    child.returncode = ended.exit_code
    if ended.by_memprof and not (folder / records.END).exists():
        records.write(folder / records.END, Ending(has_seen_enough=True))
    return ended


def _environment(folder: Path, target: Target | None) -> dict[str, str]:
    """The environment of this process, with that for `startup/sitecustomize.py`."""
    environment = dict(os.environ)
    if sys.flags.utf8_mode and "PYTHONUTF8" not in environment and environment.get("LC_CTYPE") == "C.UTF-8":
        del environment["LC_CTYPE"]  # Python has set it, in the C locale (PEP 538)
    paths = [_STARTUP, *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "MEMPROF_WATCH": str(folder.absolute())}
    return environment if target is None else {**environment, "JAX_PLATFORMS": "cpu"}


@contextmanager
def _signals_passed_on(pid: int) -> Iterator[None]:
    """Leave the signals that this process gets to the script."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number not in _OF_TERMINAL or not _is_in_foreground():  # a terminal signals the script too
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    handled = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in handled:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _ended(pid: int, seconds: float | None) -> Ended:
    """Wait for the end of a script; end it when the watcher in it has stopped it, or when its time is over."""
    code = _wait(pid, seconds)
    if isinstance(code, int):
        return Ended(exit_code=code, by_memprof=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        if code is _Not.ENDED:
            os.kill(pid, number)
            code = _wait(pid, _PATIENCE_SECONDS)
    if not isinstance(code, int):
        kill_tree(pid)
        code = _wait(pid, None)
        assert isinstance(code, int)
    return Ended(exit_code=code, by_memprof=True)


class _Not(Enum):
    """Why there is no exit code: the time is over, or the process was stopped by SIGSTOP."""

    ENDED = auto()
    RUNNING = auto()


def _wait(pid: int, seconds: float | None) -> int | _Not:
    """The exit code of a process, unless it stops itself or still runs after a time."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WUNTRACED | (0 if end is None else os.WNOHANG))
        if found and not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        if found and os.WSTOPSIG(status) == signal.SIGSTOP:
            return _Not.RUNNING
        if end is not None:
            if time.monotonic() > end:
                return _Not.ENDED
            time.sleep(_POLL_SECONDS)
