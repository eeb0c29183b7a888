"""Claims: one process makes a plan; other processes that need the same plan wait and then read it from the cache.

    with claimed(file, key, waiting=lambda: progress("waiting")):
        ...  # check the cache again, then make the plan and store it

A claim locks one byte of one file, at an offset that the key determines. So there are no files to clean up, and the
system releases the lock of a killed process. On a system without such locks no process waits: the plan is compiled
twice, and the cache keeps one copy.
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
_LONGEST_SECONDS = 600.0  # then compile here, too: the holder may have been suspended
_DIGITS = 15  # of the key; a file offset has 63 bits
_FLOCK = "@hhqqi0q"  # Linux: type, whence, start, length, process


@contextmanager
def claimed(file: Path, key: str, *, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the claim on a key while the block runs.

    Args:
        file: the file of all claims; created if missing.
        key: hexadecimal digits.
        waiting: called repeatedly while another process holds the claim.

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
            with suppress(OSError):  # unlock explicitly, because a fork of this process may have the file open
                _set_lock(descriptor, fcntl.F_UNLCK, key)
            os.close(descriptor)


def _locks(descriptor: int, key: str) -> bool:
    """Lock the byte of a key, and return False if it is already locked."""
    try:
        _set_lock(descriptor, fcntl.F_WRLCK, key)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # this file system has no such locks: do not wait
        return True
    return True


def _set_lock(descriptor: int, kind: int, key: str) -> None:
    if sys.platform == "linux":
        # The lock belongs to the open file, not to the process: threads of one process also wait for each other.
        lock = struct.pack(_FLOCK, kind, os.SEEK_SET, int(key[:_DIGITS], 16), 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
