"""Child processes that need not import JAX: forks of a server that has imported it (see `fork_server.py`).

    process = SERVER.fork(work_folder, imports=common_imports(task), environment=..., stderr=...)

The server is started with the first task, and ends with this process. Only our own work is forked: what imports the
user's code has a fresh process, for it may set what JAX reads when it is imported. The same holds for the environment:
where it has changed, the next task gets another server.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from memprof.capture.processes import process_tree

_SERVER = "memprof.capture.fork_server"
_ANSWER_BYTES = 64
# What changes from task to task, and what nothing reads when it is imported.
_MAY_DIFFER = frozenset({"COLUMNS", "LINES", "PYTEST_CURRENT_TEST", "TMPDIR"})
# Threads of other libraries would make a fork unsafe: OpenBLAS starts its own when numpy is imported.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class ForkedProcess:
    """A process that the server forks as soon as it comes to it, with the part of `subprocess.Popen` that is used."""

    def __init__(self, server: ForkServer, requests: socket.socket, request: bytes, stderr: BinaryIO) -> None:
        """Ask for it.

        Raises:
            OSError: the server is gone, or this process can open no more files.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            answers, to_answer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._answers = ours.enter_context(answers)
            theirs.enter_context(to_answer)
            read_task, write_task = os.pipe()
            self.stdin: BinaryIO = ours.enter_context(open(write_task, "wb"))
            theirs.callback(os.close, read_task)
            read_messages, write_messages = os.pipe()
            self.stdout: BinaryIO = ours.enter_context(open(read_messages, "rb"))
            theirs.callback(os.close, write_messages)
            working_folder = os.open(".", os.O_PATH)  # by its path it need not be there any more
            theirs.callback(os.close, working_folder)
            sent = [read_task, write_messages, stderr.fileno(), working_folder, to_answer.fileno()]
            socket.send_fds(requests, [request], sent)
            ours.pop_all()
        self._server = server
        self._lock = threading.Lock()
        self._pidfd: int | None = None

    def is_forked(self) -> bool:
        """Whether it was, once that is certain."""
        with self._lock:
            return self._is_forked()

    def send_signal(self, number: int) -> None:
        """Send it a signal; where the server has not come to it yet, it never will."""
        with self._lock:
            try:
                is_forked = self._is_forked(socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._server.end()
                return
        if is_forked:
            assert self._pidfd is not None
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Returns:
            Its exit code; that of a killed process where the server, which alone knows it, is gone.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        if not self.is_forked():
            return -signal.SIGKILL
        self._answers.settimeout(timeout)
        with suppress(TimeoutError):
            exit_code = self._answers.recv(_ANSWER_BYTES)
            if exit_code:
                return int(exit_code)
            assert self._pidfd is not None
            if select.select([self._pidfd], [], [], timeout)[0]:
                return -signal.SIGKILL
        raise subprocess.TimeoutExpired(_SERVER, timeout or 0.0)

    def close(self) -> None:
        """Give back what was open for it."""
        with suppress(OSError):  # nobody takes what was written
            self.stdin.close()
        self.stdout.close()
        self._answers.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _is_forked(self, flags: int = 0) -> bool:
        """Whether the server has forked it, which it answers with a pidfd, or will not, which closes the socket.

        Raises:
            BlockingIOError: neither yet, for one who does not wait.
        """
        if self._pidfd is None:
            _, descriptors = process_tree.receive(self._answers, _ANSWER_BYTES, flags)
            self._pidfd = descriptors[0] if descriptors else None
        return self._pidfd is not None


class ForkServer:
    """The server as who asks sees it; started with the first task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._inherited: object = None
        self._is_usable = sys.platform == "linux"

    def fork(
        self, work_folder: Path, *, imports: Sequence[str], environment: Mapping[str, str], stderr: BinaryIO
    ) -> ForkedProcess | None:
        """Have it fork a child process; None where it cannot.

        Args:
            work_folder: that of the task.
            imports: modules that the fork is to have.
            environment: of the fork.
            stderr: the fork's.
        """
        request = {"work_folder": str(work_folder), "imports": imports, "environment": dict(environment)}
        with self._lock:
            if not self._is_usable:
                return None
            try:
                return ForkedProcess(self, self._running(environment), json.dumps(request).encode("ascii"), stderr)
            except OSError:  # no more processes or files, no pidfds, or the server has died, as the next one would
                self._is_usable = False
                self._end()
                return None

    def prepare(self) -> None:
        """Start it, and have it import JAX, while this process finds out what to ask for."""
        with self._lock, suppress(OSError):  # the first task finds out why not
            if self._is_usable:
                self._running(os.environ).send(json.dumps({"imports": ["jax"]}).encode("ascii"))

    def end(self) -> None:
        """End it at once. What it has not come to yet it will not begin; what runs goes on."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Leave it to the process that this one is a fork of."""
        if self._process is not None and self._requests is not None:
            self._process.returncode = 0  # it is no child of this process
            self._requests.close()
        self._lock = threading.Lock()
        self._process = self._requests = None

    def _running(self, environment: Mapping[str, str]) -> socket.socket:
        """The socket for requests to a server that has inherited what a fresh process would inherit now.

        Raises:
            OSError: none can be started.
        """
        inherited = _inherited()
        if self._inherited != inherited:
            self._end()
        if self._requests is None:
            self._requests = self._start(environment)
            self._inherited = inherited
        return self._requests

    def _start(self, environment: Mapping[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as if_it_fails, theirs:
            if_it_fails.enter_context(ours)
            owner = os.pidfd_open(os.getpid())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _SERVER, str(theirs.fileno()), str(owner)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), owner),
                    start_new_session=True,
                    env={**environment, **_ONE_THREAD, "TMPDIR": tempfile.gettempdir()},
                )
            finally:
                os.close(owner)
            if_it_fails.pop_all()
        return ours

    def _end(self) -> None:
        if self._process is not None and self._requests is not None:
            self._requests.close()
            self._process.kill()
            self._process.wait()
        self._process = self._requests = None


def _inherited() -> object:
    """What a process takes over from who starts it, as far as it may matter to JAX."""
    environment = {name: value for name, value in os.environ.items() if name not in _MAY_DIFFER}
    return environment, os.sched_getaffinity(0), Path("/proc/self/limits").read_bytes()


# One for all threads of this process.
SERVER = ForkServer()
if sys.platform == "linux":
    os.register_at_fork(after_in_child=SERVER.forget)
    atexit.register(SERVER.end)
