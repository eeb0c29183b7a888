"""Trees of processes: their lifetimes, and how to end all descendants of a process.

A process can leave its group and its session, and its parent can end before it. So memprof finds the descendants of a
task in two other ways. Linux reparents orphans to an ancestor that asked for it (a "subreaper"). And a process inherits
the environment of its parent, which names the task's own folder for temporary files.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_PATIENCE_SECONDS = 10.0  # a killed process ends in milliseconds unless the kernel blocks it
_LOADING_SECONDS = 1.0
_PAUSE_SECONDS = 0.005
_MAX_DESCRIPTORS, _INT_BYTES = 5, array.array("i").itemsize
# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Fields of /proc/PID/stat, counted from the third (proc_pid_stat(5) counts from 1)
_PPID, _VSIZE, _ENV_END = 4 - 3, 23 - 3, 51 - 3


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Make the system kill this process when its parent ends, and exit if the parent has already ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_descendants(child: int | None = None) -> None:
    """Kill all descendants of this process, which must have adopted its orphans.

    Args:
        child: a child known to be alive; without /proc, the only one that can be found.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    if child is not None:
        _kill([child])
    while _reap() and time.monotonic() < end:
        _kill(_descendants(os.getpid()))
        time.sleep(_PAUSE_SECONDS)


def kill_tree(pid: int) -> None:
    """Kill a process and all descendants that are still connected to it."""
    _kill([*_descendants(pid), pid])


def end_orphans(children: Collection[int]) -> None:
    """Kill all processes that this one has adopted.

    Args:
        children: the children that this process started itself.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        orphans = [pid for pid in _all() if _parent(pid) == os.getpid() and pid not in children]
        if not orphans:
            return
        _kill(orphans)  # this process then adopts their children
        time.sleep(_PAUSE_SECONDS)
        for pid in orphans:
            os.waitpid(pid, os.WNOHANG)


def end_all_of(work_folder: Path) -> None:
    """Kill all processes that use a work folder for temporary files, whichever process started them.

    A fork shows the environment of its server, without that folder. But its supervisor has its stderr there, and the
    worker dies with the supervisor.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    num_empty = 0
    # One search can miss both a process that has just ended and the process that it has started meanwhile.
    while num_empty < 2 and time.monotonic() < end:
        found = _processes_of(work_folder)
        num_empty = 0 if found else num_empty + 1
        if found:
            _kill(found)
            time.sleep(_PAUSE_SECONDS)


def receive(connection: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receive a message and its descriptors, which other programs must not inherit.

    `socket.recv_fds` ignores its flags (Python 3.11 to 3.13).
    """
    data, found, _, _ = connection.recvmsg(
        size, socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT_BYTES), flags | socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for _, _, content in found:
        descriptors.frombytes(content)
    return data, list(descriptors)


def _reap() -> bool:
    """Reap all children that have ended, and return whether others remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants(ancestor: int) -> list[int]:
    parents = {pid: parent for pid in _all() if (parent := _parent(pid)) is not None}
    found = {ancestor}
    size = 0
    while len(found) > size:
        size = len(found)
        found.update(pid for pid, parent in parents.items() if parent in found)
    return sorted(found - {ancestor})


def _processes_of(work_folder: Path) -> list[int]:
    return [pid for pid in _all() if pid != os.getpid() and _is_of(work_folder, pid)]


def _is_of(work_folder: Path, pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        return (
            b"TMPDIR=" + os.fsencode(work_folder) in _environment(process).split(b"\0")
            or (process / "fd" / "2").readlink().parent == work_folder
        )
    except OSError:  # it has ended, is another user's, or has closed its stderr
        return False


def _environment(process: Path) -> bytes:
    """Return the environment of a process at its start.

    It reads as empty until the program is loaded, while the parent already continues. This takes milliseconds, or tens
    of milliseconds on busy processors.

    Raises:
        OSError: the process has ended, or is another user's.
    """
    end = time.monotonic() + _LOADING_SECONDS
    while True:
        status = _status(process)
        is_loading = status[_ENV_END] == b"0" and status[_VSIZE] != b"0"  # without memory: a kernel thread or a zombie
        environment = (process / "environ").read_bytes()
        if environment or not is_loading or time.monotonic() > end:
            return environment
        time.sleep(_PAUSE_SECONDS)


def _all() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:  # not Linux
        return []


def _parent(pid: int) -> int | None:
    try:
        return int(_status(Path(f"/proc/{pid}"))[_PPID])
    except OSError:
        return None


def _status(process: Path) -> list[bytes]:
    """Return the fields of `/proc/PID/stat`, without the first two.

    Raises:
        OSError: the process has ended.
    """
    # The second field is the program's name in parentheses, which may contain any character.
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has ended, or its pid now belongs to another user's process
            continue


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
