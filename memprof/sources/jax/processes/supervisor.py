"""Two processes per task: a worker, and a supervisor that watches it and cleans up.

The worker runs the user's code. That code may print gigabytes, close its standard streams, stop or kill itself, leave
threads, and start processes that outlive it. So the process that the command starts forks before it imports anything.
The worker runs the task, and the supervisor

- forwards the worker's messages in whole lines, and keeps the end of all printed output;
- ends all processes that the worker started when the worker ends, and reports its exit code;
- ends the worker and its processes, and removes the work folder, when its own stdin ends: the command has ended or
  needs no more results.

If the supervisor is killed, the worker dies with it.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from memprof.sources.jax.processes import process_tree
from memprof.sources.jax.processes.task import Message, encoded, no_process
from memprof.sources.jax.processes.work_folder import remove_folder

_KEPT_BYTES = 64 * 1024  # of the worker's output
_CHUNK_BYTES = 64 * 1024
_MAX_REMOVALS = 100


def fork_worker(work_folder: Path) -> int:
    """Fork into a worker and the supervisor, which watches it until stdin ends. Only the worker returns.

    The worker has its own standard streams: its stdin is empty, and its output is collected separately.

    Args:
        work_folder: the work folder, which the supervisor removes at the end.

    Returns:
        The descriptor for the worker's messages, one per line.
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
    except OSError as error:  # the limit on processes is reached
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
    with suppress(BrokenPipeError):  # the command has ended
        watch.run()
    process_tree.end_descendants(watch.worker)
    for _ in range(_MAX_REMOVALS):  # a process that cannot be killed at once may recreate files
        remove_folder(work_folder)
        if not work_folder.exists():
            break
    os._exit(0)


class _Watch:
    """The work of the supervisor until its stdin ends."""

    def __init__(self, *, worker: int, woken: int, messages: int, printed: int) -> None:
        self.worker: int | None = worker  # None after it has ended
        self._woken = woken
        self._messages = messages
        self._printed = printed
        self._tail = b""
        self._line = b""

    def run(self) -> None:
        """Watch until stdin ends.

        Raises:
            BrokenPipeError: the command has ended.
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
        """Return the worker's exit code, or None while it lives. Resume stopped processes, as no one else would."""
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
        """End the processes that the worker left, and send its remaining messages and output to the command."""
        process_tree.end_descendants()
        while self._relay():
            pass
        while self._keep():
            pass
        text = self._tail.decode("utf-8", errors="replace")
        _write(encoded(Message(kind="ended", text=str(exit_code), details=text)))

    def _relay(self) -> bool:
        """Forward the complete lines, and return whether there may be more."""
        data = _read(self._messages)
        if not data:
            return False
        *lines, self._line = (self._line + data).split(b"\n")
        _write(b"".join(line + b"\n" for line in lines))
        return True

    def _keep(self) -> bool:
        """Keep the end of the printed output, and return whether there may be more."""
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
