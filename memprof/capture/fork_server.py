"""A process that has imported JAX, and forks for each task: `python -m memprof.capture.fork_server SOCKET OWNER`.

Importing JAX and its libraries is most of what a small task costs. So the first task starts this server (who asks it is
in `forked_process.py`): a Python of one thread, which imports what tasks have in common, starts none of JAX's backends,
and forks whenever it is asked to. A fork has a session of its own, with the streams, the working folder and the
environment of who asked, and goes on as a fresh child does (see `child.py`).

It ends with its owner, the process that started it, however that one ends: it watches its pidfd, and the socket between
them, which an exec closes. It reaps its forks, and kills what one leaves that was killed before it could clean up.

`multiprocessing.forkserver` would import the user's script again, and there is one for a whole process, whose settings
are the user's.
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

from memprof.capture import child
from memprof.capture.processes import process_tree

_REQUEST_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 15.0  # for forks that clean up when the process that asked for them is gone
_PAUSE_SECONDS = 0.1


class _Server:
    """The server."""

    def __init__(self, requests: socket.socket, owner: int) -> None:
        self._requests = requests
        self._owner = owner
        self._started_with = dict(os.environ)
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: their ids, and where their end is reported

    def serve(self) -> None:
        """Fork until the owner is gone, then see to it that the forks end."""
        process_tree.adopt_orphans()
        gc.disable()  # imports leave no garbage to speak of
        is_wanted = True
        while is_wanted:
            asked = self._requests.fileno()
            ready, _, _ = select.select([self._owner, asked, *self._forks], [], [])
            self._bury(ready)
            is_wanted = self._owner not in ready and (asked not in ready or self._answer())
        self._requests.close()
        end = time.monotonic() + _PATIENCE_SECONDS
        while self._forks and time.monotonic() < end:
            self._bury(select.select([*self._forks], [], [], _PAUSE_SECONDS)[0])
        process_tree.end_descendants()

    def _answer(self) -> bool:
        """Do what is asked, or let go of what came with it: then a fresh process does it. Returns whether one asked."""
        data, descriptors = process_tree.receive(self._requests, _REQUEST_BYTES)
        if data and not descriptors:  # nothing is to be forked yet
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
        """Fork. It is the fork that answers: this process may be killed at any moment.

        Raises:
            OSError: the system allows no more processes or files, or the working folder is forbidden to enter.
        """
        self._import(request)
        if len(os.listdir("/proc/self/task")) > 1:  # a fork could wait for locks that these threads hold
            return
        os.fchdir(folder)
        gc.freeze()  # else the fork's collector would copy all pages
        pid = os.fork()
        if pid == 0:
            self._go_on(request, streams, answers)
        self._forks[os.pidfd_open(pid)] = pid, answers.dup()

    def _go_on(self, request: dict[str, Any], streams: Iterable[int], answers: socket.socket) -> NoReturn:
        """Become a child process, as who asked wants it, and answer with a pidfd."""
        try:
            pidfd = os.pidfd_open(os.getpid())
        except OSError:  # no more files: a fresh process does it
            os._exit(1)
        with suppress(OSError):  # who asked is gone, as stdin is about to say
            socket.send_fds(answers, [b"forked"], [pidfd])
        os.setsid()
        for stream, descriptor in enumerate(streams):
            os.dup2(descriptor, stream)
        self._set_environment(request["environment"])
        gc.enable()
        raise _Forked(Path(request["work_folder"]))

    def _set_environment(self, wanted: Mapping[str, str]) -> None:
        """Change what is different from the server's own; the rest may have been changed by what it has imported."""
        for name in self._started_with.keys() | wanted.keys():
            if name not in wanted:
                os.environ.pop(name, None)
            elif wanted[name] != self._started_with.get(name):
                os.environ[name] = wanted[name]
        tempfile.tempdir = None  # Python looks for it once

    def _bury(self, ready: Iterable[int]) -> None:
        """Report how forks have ended."""
        for pidfd in self._forks.keys() & set(ready):
            pid, answers = self._forks.pop(pidfd)
            os.close(pidfd)
            exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if exit_code != 0:  # it may have been killed before it could end what it had started
                process_tree.end_orphans({pid for pid, _ in self._forks.values()})
            with answers, suppress(OSError):  # who asked is gone
                answers.send(str(exit_code).encode("ascii"))


class _Forked(BaseException):
    """This process is a fork: the server's frames go, which a crash would show."""

    def __init__(self, work_folder: Path) -> None:
        self.work_folder = work_folder


def _close_all() -> None:
    """Close what is the server's, or another task's."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with suppress(OSError):  # that of the list itself
                os.close(descriptor)


if __name__ == "__main__":
    # Named, so that its sockets are not closed a second time when it goes: their numbers will be those of other files.
    _server = _Server(socket.socket(fileno=int(sys.argv[1])), owner=int(sys.argv[2]))
    try:
        _server.serve()
        os._exit(0)
    except _Forked as fork:
        _work_folder = fork.work_folder
    _close_all()
    child.do_task(_work_folder)
