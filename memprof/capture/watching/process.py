"""Start a script as `python` would, with what watches it, and wait until it ends, however that is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from memprof.analysis.records.capture import Target
from memprof.capture.watching import script as script_runner
from memprof.capture.watching.records import ENOUGH
from memprof.errors import MemprofError

_PATIENCE_SECONDS = 30.0  # for a script that was asked to end


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
    """When a script is ended: after so many programs of its own, or so many seconds; both None: see `run_script`."""

    num_programs: int | None = None
    seconds: float | None = None


def run_script(script: Script, folder: Path, *, target: Target | None, stop_after: StopAfter) -> int:
    """Run a script to its end, and have what it does written into a folder (see `records.py`).

    Its streams are this process's own, and so is the terminal: Ctrl-C is the script's to handle.

    Args:
        target: what its programs are to be compiled for instead of what they run on; the script then runs on the CPU,
            and is ended with its first training step unless `stop_after` says otherwise.

    Returns:
        Its exit code; of one that a signal has killed, the negative number of that.

    Raises:
        MemprofError: there is no such script.
    """
    if not script.is_module and not os.path.exists(script.name):
        raise MemprofError(f"there is no script {script.name}: give its path, or -m and the name of a module")
    watching = {
        "target": None if target is None else target.file or target.name,
        "num_programs": stop_after.num_programs,
        "may_end": target is not None and stop_after.seconds is None,
    }
    command = [sys.executable, script_runner.__file__, str(folder), json.dumps(watching)]
    command += [*(["-m"] if script.is_module else []), script.name, *script.arguments]
    environment = dict(os.environ) if target is None else {**os.environ, "JAX_PLATFORMS": "cpu"}
    child = subprocess.Popen(command, env=environment)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, pass_on)
    try:
        return _wait(child, folder, stop_after.seconds)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _wait(child: subprocess.Popen[bytes], folder: Path, seconds: float | None) -> int:
    with suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    (folder / ENOUGH).touch()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            return child.wait(_PATIENCE_SECONDS)
    return child.wait()
