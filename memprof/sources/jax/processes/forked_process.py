"""Child processes forked from a server that has already imported JAX (see `fork_server.py`).

    process = SERVER.fork(work_folder, imports=common_imports(task), environment=..., stderr=...)

The server starts with the first task, and ends with this process. Only memprof's own work is forked. A task that
imports the user's code gets a fresh process, because that code may set variables that JAX reads on import. For the same
reason, the next task gets a new server if the environment has changed.
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

from memprof.sources.jax.processes import process_tree

_SERVER = "memprof.sources.jax.fork_server"
_ANSWER_BYTES = 64
# Variables that change between tasks and that no module reads on import.
_MAY_DIFFER = frozenset({"COLUMNS", "LINES", "PYTEST_CURRENT_TEST", "TMPDIR"})
# Threads of libraries would make a fork unsafe: OpenBLAS starts threads when numpy is imported.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class ForkedProcess:
    """A process that the server forks when it reaches the request; it has the used part of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, requests: socket.socket, request: bytes, stderr: BinaryIO) -> None:
        """Send the request for the process.

        Raises:
            OSError: the server has ended, or this process cannot open more files.
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
            working_folder = os.open(".", os.O_PATH)  # its path may no longer exist
            theirs.callback(os.close, working_folder)
            sent = [read_task, write_messages, stderr.fileno(), working_folder, to_answer.fileno()]
            socket.send_fds(requests, [request], sent)
            ours.pop_all()
        self._server = server
        self._lock = threading.Lock()
        self._pidfd: int | None = None

    def is_forked(self) -> bool:
        """Wait until the server has forked the process or failed to, and return whether it has."""
        with self._lock:
            return self._is_forked()

    def send_signal(self, number: int) -> None:
        """Send a signal; if the server has not forked the process yet, end the server so that it never does."""
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
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended.

        Returns:
            Its exit code, or that of a killed process if the server, the only one to know it, has ended.

        Raises:
            subprocess.TimeoutExpired: the process has not ended.
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
        """Close the pipes and sockets of the process."""
        with suppress(OSError):  # the pipe has no reader
            self.stdin.close()
        self.stdout.close()
        self._answers.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _is_forked(self, flags: int = 0) -> bool:
        """Whether the server has forked the process: it then sends a pidfd, otherwise it closes the socket.

        Raises:
            BlockingIOError: no answer yet, and `flags` forbid to wait.
        """
        if self._pidfd is None:
            _, descriptors = process_tree.receive(self._answers, _ANSWER_BYTES, flags)
            self._pidfd = descriptors[0] if descriptors else None
        return self._pidfd is not None


class ForkServer:
    """The client side of the server, which starts with the first task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._inherited: object = None
        self._is_usable = sys.platform == "linux"

    def fork(
        self, work_folder: Path, *, imports: Sequence[str], environment: Mapping[str, str], stderr: BinaryIO
    ) -> ForkedProcess | None:
        """Request a forked child process, or return None if the server cannot fork.

        Args:
            work_folder: the task's work folder.
            imports: modules to import before the fork.
            environment: the fork's environment.
            stderr: the fork's stderr.
        """
        request = {"work_folder": str(work_folder), "imports": imports, "environment": dict(environment)}
        with self._lock:
            if not self._is_usable:
                return None
            try:
                return ForkedProcess(self, self._running(environment), json.dumps(request).encode("ascii"), stderr)
            except OSError:  # a limit on processes or files, no pidfds, or a dead server, as the next would be
                self._is_usable = False
                self._end()
                return None

    def prepare(self) -> None:
        """Start the server and import JAX in it while this process prepares the first task."""
        with self._lock, suppress(OSError):  # the first task will report the error
            if self._is_usable:
                self._running(os.environ).send(json.dumps({"imports": ["jax"]}).encode("ascii"))

    def end(self) -> None:
        """End the server at once. Queued requests are dropped; running forks continue."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Drop the server in a fork of this process; it remains the parent's."""
        if self._process is not None and self._requests is not None:
            self._process.returncode = 0  # it is not a child of this process
            self._requests.close()
        self._lock = threading.Lock()
        self._process = self._requests = None

    def _running(self, environment: Mapping[str, str]) -> socket.socket:
        """Return the request socket of a server that has inherited the same state as a fresh process would now.

        Raises:
            OSError: the server cannot start.
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
    """Return the state that a process inherits from its parent and that may affect JAX."""
    environment = {name: value for name, value in os.environ.items() if name not in _MAY_DIFFER}
    return environment, os.sched_getaffinity(0), Path("/proc/self/limits").read_bytes()


# Shared by all threads of this process.
SERVER = ForkServer()
if sys.platform == "linux":
    os.register_at_fork(after_in_child=SERVER.forget)
    atexit.register(SERVER.end)
