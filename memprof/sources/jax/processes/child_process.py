"""The command's side of a child process: start it with a task, read its messages, and end it with the block."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes import process_tree
from memprof.sources.jax.processes.forked_process import SERVER, ForkedProcess
from memprof.sources.jax.processes.task import (
    DUMP_FOLDER,
    RESULT_FILE,
    STDERR_FILE,
    AnyTask,
    Message,
    Task,
    common_imports,
    decoded,
    encoded_task,
    no_process,
    raise_error,
)
from memprof.sources.jax.user_traceback import shortened
from memprof.sources.jax.xla.compiler_log import LOG_FILE
from memprof.sources.pool_settings import without_preallocation

Progress = Callable[[str], None]

_PATIENCE_SECONDS = 15.0  # longer than the supervisor needs to end the worker's processes
_LAST_LINES, _LOG_BYTES = 20, 1 << 16
_IMPORTING = "importing"
_RUNNING = ("making the arguments", "running", "reading the trace")  # prefixes of the stages of a run (`run.measure`)


class _Endable(Protocol):
    def end(self) -> None: ...


class Children:
    """The child processes of one caller, which can end them together from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Endable] = set()
        self._are_ended = False

    def check(self) -> None:
        """Raise `MemprofError` if the children have been ended: a new child would end at once."""
        with self._lock:
            if self._are_ended:
                raise MemprofError("interrupted")

    def add(self, child: _Endable) -> None:
        """Add a child that has started; end it at once if the others have been ended."""
        with self._lock:
            self._running.add(child)
            if self._are_ended:
                child.end()

    def remove(self, child: _Endable) -> None:
        """Remove a child that has ended."""
        with self._lock:
            self._running.discard(child)

    def end(self) -> None:
        """End all children at once; threads that wait for them report a crash."""
        with self._lock:
            self._are_ended = True
            for child in self._running:
                child.end()


class ChildProcess:
    """The supervisor (see `supervisor.py`) and its two pipes. It works while its stdin is open.

    Its stderr, which receives only its own errors, is a file of the work folder.
    """

    def __init__(self, work_folder: Path, task: AnyTask) -> None:
        """Start the process, as a fork if possible.

        Raises:
            MemprofError: no process can be started.
        """
        self._work_folder = work_folder
        self._task = task
        self._environment = _environment(work_folder, task)
        self._process = _forked(work_folder, common_imports(task), self._environment) or _fresh(
            work_folder, self._environment
        )
        self._lock = threading.Lock()
        self._stage = "starting"
        self._result: Message | None = None
        self._ended: Message | None = None

    @classmethod
    @contextmanager
    def started(cls, work_folder: Path, task: AnyTask, children: Children) -> Iterator[ChildProcess]:
        """Start a child with its task, and end it when the block exits, also on an error.

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
        """Make the supervisor end the worker and all its processes, remove the work folder, and exit."""
        with self._lock:
            with suppress(OSError):
                _pipe(self._process.stdin).close()
            self._process.send_signal(signal.SIGCONT)  # it may be stopped

    def finish(self, progress: Progress, timeout_seconds: float | None) -> None:
        """Wait until the job is done.

        Raises:
            MemprofError: the child found a user's mistake.
            WorkloadError: the step failed, took too long, or crashed its process.
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
                f"The step was not done after {timeout_seconds:g} s, while it was {self._stage}; allow more time "
                "with --timeout, or make the step smaller"
            )
        if result is None:
            raise self._crash()
        raise_error(result)

    def _send_task(self) -> None:
        line = encoded_task(self._task)
        with self._lock, suppress(BrokenPipeError):  # `_listen` will notice that it has ended
            stdin = _pipe(self._process.stdin)
            if not stdin.closed:  # `end` may have closed it already
                stdin.write(line)
                stdin.flush()  # and keep it open

    def _is_begun_afresh(self) -> bool:
        """Start a fresh process if the server did not fork and no message arrived, and return whether it was needed."""
        with self._lock:
            was_begun = self._ended or self._result or _pipe(self._process.stdin).closed
            if was_begun or not isinstance(self._process, ForkedProcess) or self._process.is_forked():
                return False
            self._process.close()
            self._process = _fresh(self._work_folder, self._environment)
        self._send_task()
        return True

    def _listen(self, progress: Progress) -> None:
        """Read messages until the worker ends, or the supervisor, which ends first only if it is killed."""
        if isinstance(self._process, ForkedProcess):  # the server may have to import first
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
        with suppress(OSError):  # stderr of the compile
            log = self._work_folder / DUMP_FOLDER / LOG_FILE
            printed += log.read_bytes()[-_LOG_BYTES:].decode("utf-8", errors="replace")
        unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", printed)
        if unknown:  # XLA aborts the process
            return MemprofError(f"XLA_FLAGS contains a flag that XLA does not support, {unknown.group(1)}: remove it")
        unread = re.search(r"Couldn't interpret value (.*) for flag (\w+)", printed)
        if unread:
            value, flag = unread.groups()
            return MemprofError(f"XLA_FLAGS contains an invalid value, --{flag}={value}: correct it")
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
        """End the process and check that it ended: a killed or stopped supervisor has cleaned up nothing."""
        self.end()
        _pipe(self._process.stdout).close()  # otherwise the supervisor may block on a full pipe
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


def _forked(work_folder: Path, imports: tuple[str, ...], environment: Mapping[str, str]) -> ForkedProcess | None:
    if not imports:
        return None
    with (work_folder / STDERR_FILE).open("wb") as stderr:
        return SERVER.fork(work_folder, imports=imports, environment=environment, stderr=stderr)


def _fresh(work_folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        with (work_folder / STDERR_FILE).open("wb") as stderr:
            return subprocess.Popen(
                # `-P` keeps the working folder off its path: a user's `types.py` there would shadow Python's.
                [sys.executable, "-P", "-m", "memprof.sources.jax.child", str(work_folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C then reaches only this process, which ends the child
                env=environment,
            )
    except OSError as error:
        raise MemprofError(no_process(error).text) from error


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _environment(work_folder: Path, task: AnyTask) -> dict[str, str]:
    runs = isinstance(task, Task) and bool(task.num_steps)
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        # Temporary files are removed with the work folder: a killed XLA leaves its files for ptxas behind.
        "TMPDIR": str(work_folder),
        # A step runs in JAX's own pool. A compile alone leaves the device to others.
        **({} if runs else without_preallocation(os.environ)),
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal without a name
        return f"signal {number}"
