"""Two processes for one piece of work: one does it, the other watches and cleans up.

What is compiled is the user's code. It may print gigabytes, close its standard streams, stop or kill itself, leave
threads, and start processes that outlive it. So the process that the command starts forks before it imports anything:
the worker does the work, and the supervisor

- hands the worker's messages on, whole lines only, and keeps the end of what anybody prints;
- says how the worker has ended: then it ends all that the worker started, at once;
- does the same, and removes the work folder, when the command is gone or wants no more: when its stdin ends.

The worker dies with the supervisor, should somebody kill that one.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from memprof.capture.processes import process_tree
from memprof.capture.processes.task import Message, encoded, no_process
from memprof.capture.processes.work_folder import remove_folder

_KEPT_BYTES = 64 * 1024  # of what the worker prints
_CHUNK_BYTES = 64 * 1024
_MAX_REMOVALS = 100


def fork_worker(work_folder: Path) -> int:
    """Fork into a worker and the supervisor, which watches it until stdin ends. Only the worker returns.

    Its standard streams are its own: nobody answers, and what it prints is kept apart.

    Args:
        work_folder: removed by the supervisor at the end.

    Returns:
        The descriptor on which the worker sends its messages, each a line.
    """
    process_tree.adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    messages, send_messages = os.pipe()
    printed, send_printed = os.pipe()
    supervisor = os.getpid()
    try:
        worker = os.fork()
    except OSError as error:  # as many processes as there may be
        _write(encoded(no_process(error)))
        os._exit(0)
    if worker != 0:
        os.close(send_messages)
        os.close(send_printed)
        _supervise(_Watch(worker=worker, woken=woken, messages=messages, printed=printed), work_folder)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process_tree.die_with(supervisor)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, stream in ((nothing, 0), (send_printed, 1), (send_printed, 2)):
        os.dup2(source, stream)
    for descriptor in (woken, wake, messages, printed, send_printed, nothing):
        os.close(descriptor)
    return send_messages


def _supervise(watch: _Watch, work_folder: Path) -> NoReturn:
    with suppress(BrokenPipeError):  # the command is gone
        watch.run()
    process_tree.end_descendants(watch.worker)
    for _ in range(_MAX_REMOVALS):  # what cannot be killed at once may put back what was just removed
        remove_folder(work_folder)
        if not work_folder.exists():
            break
    os._exit(0)


class _Watch:
    """What the supervisor does until its stdin ends."""

    def __init__(self, *, worker: int, woken: int, messages: int, printed: int) -> None:
        self.worker: int | None = worker  # None: it has ended
        self._woken = woken
        self._messages = messages
        self._printed = printed
        self._tail = b""
        self._line = b""

    def run(self) -> None:
        """Watch until the command wants no more.

        Raises:
            BrokenPipeError: the command is gone.
        """
        open_descriptors = {0, self._woken, self._messages, self._printed}
        for descriptor in (self._messages, self._printed):
            os.set_blocking(descriptor, False)
        while True:
            ready, _, _ = select.select(sorted(open_descriptors), [], [])
            if 0 in ready and not os.read(0, _CHUNK_BYTES):
                return
            if self._messages in ready and not self._relay():
                open_descriptors.discard(self._messages)
            if self._printed in ready and not self._keep():
                open_descriptors.discard(self._printed)
            if self._woken in ready:
                os.read(self._woken, _CHUNK_BYTES)
                status = self._status()
                if status is not None:
                    self._end(status)
                    open_descriptors = {0}

    def _status(self) -> int | None:
        """How the worker has ended; None while it lives. One that is stopped goes on: nobody else would wake it."""
        ended = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if os.WIFSTOPPED(status):
                os.kill(pid, signal.SIGCONT)
            elif pid == self.worker:
                ended = os.waitstatus_to_exitcode(status)
                self.worker = None

    def _end(self, exit_code: int) -> None:
        """End what the worker has left, and tell the command what there is to tell."""
        process_tree.end_descendants()
        while self._relay():
            pass
        while self._keep():
            pass
        text = self._tail.decode("utf-8", errors="replace")
        _write(encoded(Message(kind="ended", text=str(exit_code), details=text)))

    def _relay(self) -> bool:
        """Hand on the lines that are complete. Returns whether there may be more."""
        data = _read(self._messages)
        if not data:
            return False
        *lines, self._line = (self._line + data).split(b"\n")
        _write(b"".join(line + b"\n" for line in lines))
        return True

    def _keep(self) -> bool:
        """Keep the end of what was printed. Returns whether there may be more."""
        data = _read(self._printed)
        self._tail = (self._tail + data)[-_KEPT_BYTES:]
        return bool(data)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return b""


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
