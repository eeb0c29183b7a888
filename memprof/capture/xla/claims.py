"""One process makes a plan; whoever wants the same at that moment waits for it, and takes it from the cache.

    with claimed(file, key, waiting=lambda: progress("waiting")):
        ...  # look again, then make it and keep it

A claim is the lock of one byte of one file, at a place that the key says: so there is nothing to clean up, and the
system gives back the lock of a process that was killed. Where it has no such locks, nobody waits: the same is then
compiled twice, and the cache keeps one of them.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PAUSE_SECONDS = 0.05
_LONGEST_SECONDS = 600.0  # whoever has it may have been stopped: then it is compiled here, too
_DIGITS = 15  # of the key; a place in a file has 63 bits
_FLOCK = "@hhqqi0q"  # Linux: type, whence, start, length, process


@contextmanager
def claimed(file: Path, key: str, *, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the claim on a key while the block runs.

    Args:
        file: which holds all claims; made if it is not there.
        key: hexadecimal digits.
        waiting: called again and again while another process has it.

    Raises:
        Exception: whatever `waiting` raises.
    """
    descriptor = None
    if fcntl is None:
        yield
        return
    with suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        end = time.monotonic() + _LONGEST_SECONDS
        while descriptor is not None and not _locks(descriptor, key) and time.monotonic() < end:
            waiting()
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):  # said, since a fork of this process may have the file open
                _set_lock(descriptor, fcntl.F_UNLCK, key)
            os.close(descriptor)


def _locks(descriptor: int, key: str) -> bool:
    """Lock the byte of a key. Returns False where another has it."""
    try:
        _set_lock(descriptor, fcntl.F_WRLCK, key)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # no such locks on this file system: nothing to wait for
        return True
    return True


def _set_lock(descriptor: int, kind: int, key: str) -> None:
    if sys.platform == "linux":
        # Of the open file, not of the process: threads of one process keep each other waiting, too.
        lock = struct.pack(_FLOCK, kind, os.SEEK_SET, int(key[:_DIGITS], 16), 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
