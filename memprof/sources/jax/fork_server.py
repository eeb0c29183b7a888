"""A process that has imported JAX, and forks for each task: `python -m memprof.sources.jax.fork_server SOCKET OWNER`.

Importing JAX and its libraries takes most of the time of a small task. So the first task starts this server (its client
is in `forked_process.py`): a single-threaded Python that imports the modules that tasks share, starts no JAX backend,
and forks on request. A fork has its own session and the client's streams, working folder and environment. It continues
as a fresh child does (see `child.py`).

The server ends with its owner, the process that started it, however the owner ends. It watches the owner's pidfd and
the socket between them, which an exec closes. It reaps its forks, and kills the processes of a fork that was killed
before it could clean up.

`multiprocessing.forkserver` is no alternative: it would import the user's script again, and a process has only one,
with the user's settings.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from memprof.sources.jax import child
from memprof.sources.jax.processes import process_tree

_REQUEST_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 15.0  # for forks that clean up after their client has ended
_PAUSE_SECONDS = 0.1


class _Server:
    """The server."""

    def __init__(self, requests: socket.socket, owner: int) -> None:
        self._requests = requests
        self._owner = owner
        self._started_with = dict(os.environ)
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: process id, socket for its exit code

    def serve(self) -> None:
        """Fork until the owner has ended, then make sure that the forks end."""
        process_tree.adopt_orphans()
        gc.disable()  # imports leave hardly any garbage
        is_wanted = True
        while is_wanted:
            asked = self._requests.fileno()
            ready, _, _ = select.select([self._owner, asked, *self._forks], [], [])
            self._reap(ready)
            is_wanted = self._owner not in ready and (asked not in ready or self._answer())
        self._requests.close()
        end = time.monotonic() + _PATIENCE_SECONDS
        while self._forks and time.monotonic() < end:
            self._reap(select.select([*self._forks], [], [], _PAUSE_SECONDS)[0])
        process_tree.end_descendants()

    def _answer(self) -> bool:
        """Serve one request, and return whether there was one. If it gets no fork, the client starts a process."""
        data, descriptors = process_tree.receive(self._requests, _REQUEST_BYTES)
        if data and not descriptors:  # a request to import only
            self._import(json.loads(data))
        elif data:
            *streams, working_folder, to_answer = descriptors
            with socket.socket(fileno=to_answer) as answers, suppress(OSError):
                self._fork(json.loads(data), streams, working_folder, answers)
            for descriptor in (*streams, working_folder):
                os.close(descriptor)
        return bool(data)

    def _import(self, request: dict[str, Any]) -> None:
        for name in request["imports"]:
            importlib.import_module(name)

    def _fork(self, request: dict[str, Any], streams: Iterable[int], folder: int, answers: socket.socket) -> None:
        """Fork. The fork itself answers, because this process may be killed at any moment.

        Raises:
            OSError: a limit on processes or files is reached, or the working folder cannot be entered.
        """
        self._import(request)
        if len(os.listdir("/proc/self/task")) > 1:  # a fork could deadlock on locks of the other threads
            return
        os.fchdir(folder)
        gc.freeze()  # otherwise the fork's collector would copy all pages
        pid = os.fork()
        if pid == 0:
            self._go_on(request, streams, answers)
        self._forks[os.pidfd_open(pid)] = pid, answers.dup()

    def _go_on(self, request: dict[str, Any], streams: Iterable[int], answers: socket.socket) -> NoReturn:
        """Become a child process as requested, and answer with a pidfd."""
        try:
            pidfd = os.pidfd_open(os.getpid())
        except OSError:  # no more files: the client starts a fresh process
            os._exit(1)
        with suppress(OSError):  # the client has ended, and stdin will be at its end
            socket.send_fds(answers, [b"forked"], [pidfd])
        os.setsid()
        for stream, descriptor in enumerate(streams):
            os.dup2(descriptor, stream)
        self._set_environment(request["environment"])
        gc.enable()
        raise _Forked(Path(request["work_folder"]))

    def _set_environment(self, wanted: Mapping[str, str]) -> None:
        """Set the variables that differ from the server's initial ones; its imports may have changed the others."""
        for name in self._started_with.keys() | wanted.keys():
            if name not in wanted:
                os.environ.pop(name, None)
            elif wanted[name] != self._started_with.get(name):
                os.environ[name] = wanted[name]
        tempfile.tempdir = None  # Python caches it

    def _reap(self, ready: Iterable[int]) -> None:
        """Reap forks that have ended, and report their exit codes."""
        for pidfd in self._forks.keys() & set(ready):
            pid, answers = self._forks.pop(pidfd)
            os.close(pidfd)
            exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if exit_code != 0:  # it may have been killed before it could end its own processes
                process_tree.end_orphans({pid for pid, _ in self._forks.values()})
            with answers, suppress(OSError):  # the client has ended
                answers.send(str(exit_code).encode("ascii"))


class _Forked(BaseException):
    """Raised in a fork to unwind the server's frames, which a crash would otherwise show."""

    def __init__(self, work_folder: Path) -> None:
        self.work_folder = work_folder


def _close_all() -> None:
    """Close the descriptors of the server and of other tasks."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


if __name__ == "__main__":
    # Keep a reference, so that its sockets are not closed a second time: their numbers will belong to other files.
    _server = _Server(socket.socket(fileno=int(sys.argv[1])), owner=int(sys.argv[2]))
    try:
        _server.serve()
        os._exit(0)
    except _Forked as fork:
        _work_folder = fork.work_folder
    _close_all()
    child.do_task(_work_folder)
