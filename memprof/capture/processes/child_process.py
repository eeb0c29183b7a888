"""The child process as the command sees it: started with a task, listened to, gone when the block is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from memprof.capture.pool_settings import without_preallocation
from memprof.capture.processes import process_tree
from memprof.capture.processes.forked_process import SERVER, ForkedProcess
from memprof.capture.processes.task import (
    DUMP_FOLDER,
    RESULT_FILE,
    STDERR_FILE,
    AnyTask,
    Message,
    common_imports,
    decoded,
    encoded_task,
    no_process,
)
from memprof.capture.user_traceback import shortened
from memprof.capture.xla.compiler_log import LOG_FILE
from memprof.errors import InternalError, MemprofError, WorkloadError

Progress = Callable[[str], None]

_PATIENCE_SECONDS = 15.0  # longer than the supervisor takes to end what the worker has started
_LAST_LINES, _LOG_BYTES = 20, 1 << 16
_IMPORTING = "importing"
_RUNNING = (
    "making the arguments",
    "running",
    "reading the trace",
)  # what the stages of a run begin with (`run.measure`)


class _Endable(Protocol):
    def end(self) -> None: ...


class Children:
    """The child processes of one caller, to be ended together, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Endable] = set()
        self._are_ended = False

    def check(self) -> None:
        """Raises `MemprofError` where the others have ended: nothing need be started that would end at once."""
        with self._lock:
            if self._are_ended:
                raise MemprofError("interrupted")

    def add(self, child: _Endable) -> None:
        """A child that has started; it ends at once if the others have."""
        with self._lock:
            self._running.add(child)
            if self._are_ended:
                child.end()

    def remove(self, child: _Endable) -> None:
        """A child that is gone."""
        with self._lock:
            self._running.discard(child)

    def end(self) -> None:
        """End all at once, whichever threads wait for them: those threads then report a crash."""
        with self._lock:
            self._are_ended = True
            for child in self._running:
                child.end()


class ChildProcess:
    """The supervisor (see `supervisor.py`), by its two pipes: while its stdin is open, it works.

    Its stderr, where only what goes wrong with itself is printed, is a file of the work folder.
    """

    def __init__(self, work_folder: Path, task: AnyTask) -> None:
        """Start it: as a fork where that will do.

        Raises:
            MemprofError: no process can be started.
        """
        self._work_folder = work_folder
        self._task = task
        self._process = _forked(work_folder, common_imports(task)) or _fresh(work_folder)
        self._lock = threading.Lock()
        self._stage = "starting"
        self._result: Message | None = None
        self._ended: Message | None = None

    @classmethod
    @contextmanager
    def started(cls, work_folder: Path, task: AnyTask, children: Children) -> Iterator[ChildProcess]:
        """A child that has its task, gone when the block is left, however that happens.

        Raises:
            MemprofError: no process can be started.
        """
        child = cls(work_folder, task)
        try:
            children.add(child)
            child._send_task()
            yield child
        finally:
            children.remove(child)
            child._close()

    def end(self) -> None:
        """Have the supervisor end the work, all that the work has started, the work folder and itself."""
        with self._lock:
            with suppress(OSError):
                _pipe(self._process.stdin).close()
            self._process.send_signal(signal.SIGCONT)  # for the case that somebody has stopped it

    def finish(self, progress: Progress, timeout_seconds: float | None) -> None:
        """Wait until the job is done.

        Raises:
            MemprofError: a mistake that the child found.
            WorkloadError: the step failed, took too long, or took its process down.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.end()

        timer = threading.Timer(timeout_seconds, expire) if timeout_seconds is not None else None
        if timer:
            timer.start()
        try:
            self._listen(progress)
            if self._is_begun_afresh():
                self._listen(progress)
        finally:
            if timer:
                timer.cancel()
        result = self._result or self._left_result()
        if result is None and expired.is_set():
            raise WorkloadError(
                f"The step was not done after {timeout_seconds:g} s, while it was {self._stage}; give it longer with"
                " --timeout, or make it smaller"
            )
        if result is None:
            raise self._crash()
        _raise(result)

    def _send_task(self) -> None:
        line = encoded_task(self._task)
        with self._lock, suppress(BrokenPipeError):  # its end will be noticed where it is listened to
            stdin = _pipe(self._process.stdin)
            if not stdin.closed:  # by who has ended it already
                stdin.write(line)
                stdin.flush()  # and left open

    def _is_begun_afresh(self) -> bool:
        """Whether nothing was heard because the server would not fork or has ended: a fresh process does the task."""
        with self._lock:
            was_begun = self._ended or self._result or _pipe(self._process.stdin).closed
            if was_begun or not isinstance(self._process, ForkedProcess) or self._process.is_forked():
                return False
            self._process.close()
            self._process = _fresh(self._work_folder)
        self._send_task()
        return True

    def _listen(self, progress: Progress) -> None:
        """Take messages until the worker has ended, or the supervisor, which nobody but a killer does before it."""
        if isinstance(self._process, ForkedProcess):  # the server may have to do that first
            self._begin(_IMPORTING, progress)
        for line in _pipe(self._process.stdout):
            message = decoded(line, Message)
            if message.kind == "ended":
                self._ended = message
                return
            if message.kind == "stage":
                self._begin(message.text, progress)
            else:
                self._result = message

    def _begin(self, stage: str, progress: Progress) -> None:
        if stage != self._stage:
            self._stage = stage
            progress(stage)

    def _left_result(self) -> Message | None:
        try:
            return decoded((self._work_folder / RESULT_FILE).read_bytes(), Message)
        except FileNotFoundError:
            return None

    def _crash(self) -> MemprofError:
        if self._ended is not None:
            exit_code, printed = int(self._ended.text), self._ended.details
        else:
            exit_code, printed = self._process.wait(), ""
        with suppress(OSError):
            printed = printed or (self._work_folder / STDERR_FILE).read_text(encoding="utf-8", errors="replace")
        with suppress(OSError):  # what was written while it compiled
            log = self._work_folder / DUMP_FOLDER / LOG_FILE
            printed += log.read_bytes()[-_LOG_BYTES:].decode("utf-8", errors="replace")
        unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", printed)
        if unknown:  # XLA ends the process
            return MemprofError(f"XLA does not know a flag that XLA_FLAGS gives it, {unknown.group(1)}: take it out")
        unread = re.search(r"Couldn't interpret value (.*) for flag (\w+)", printed)
        if unread:
            value, flag = unread.groups()
            return MemprofError(f"XLA cannot read a value that XLA_FLAGS gives it, --{flag}={value}: correct it")
        if exit_code < 0:
            how = f"was killed by {_signal_name(-exit_code)}"
            hint = " (out of host memory, perhaps)" if -exit_code == signal.SIGKILL else ""
        else:
            how, hint = f"ended with exit code {exit_code}", ""
        process = "running" if self._stage.startswith(_RUNNING) else "compiling"
        return WorkloadError(
            f"The {process} process {how}{hint} while it was {self._stage}",
            details=shortened("\n".join(printed.strip().splitlines()[-_LAST_LINES:])),
        )

    def _close(self) -> None:
        """End it, and make sure of it: a supervisor that somebody has killed or stopped has ended nothing."""
        self.end()
        _pipe(self._process.stdout).close()  # else the supervisor may wait for somebody to read
        try:
            is_clean = self._process.wait(timeout=_PATIENCE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            is_clean = False
        if isinstance(self._process, ForkedProcess):
            self._process.close()
        if not is_clean:
            process_tree.end_all_of(self._work_folder)


def _raise(result: Message) -> None:
    if result.kind == "workload_error":
        raise WorkloadError(result.text, details=result.details)
    if result.kind == "error":
        raise (InternalError if result.error_type == "InternalError" else MemprofError)(result.text)


def _forked(work_folder: Path, imports: tuple[str, ...]) -> ForkedProcess | None:
    if not imports:
        return None
    with (work_folder / STDERR_FILE).open("wb") as stderr:
        return SERVER.fork(work_folder, imports=imports, environment=_environment(work_folder), stderr=stderr)


def _fresh(work_folder: Path) -> subprocess.Popen[bytes]:
    try:
        with (work_folder / STDERR_FILE).open("wb") as stderr:
            return subprocess.Popen(
                # The working folder is not on its path (`-P`): a user's `types.py` there would stand in for Python's.
                [sys.executable, "-P", "-m", "memprof.capture.child", str(work_folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # so that Ctrl-C reaches this process alone, which then ends the child
                env=_environment(work_folder),
            )
    except OSError as error:
        raise MemprofError(no_process(error).text) from error


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _environment(work_folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        # Temporary files go with the work folder: XLA leaves those that it gives to ptxas behind when it is killed.
        "TMPDIR": str(work_folder),
        **without_preallocation(os.environ),
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one without a name, of the real-time signals
        return f"signal {number}"
