"""Folders that a command needs while it works, gone when it ends; what a killed command left goes with the next one.

Each is locked for as long as its command lives, and the system gives the lock of a dead process back, whatever killed
it. So a folder of ours that can be locked belongs to nobody.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memprof.capture.processes import process_tree
from memprof.errors import MemprofError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = "in-use.lock"
_UNLOCKED_SECONDS = 60.0  # a folder of ours is without its lock for a moment, when it is new


@contextmanager
def work_folder(parent: Path | None = None, *, prefix: str = "memprof-") -> Iterator[Path]:
    """A new folder, gone when the block is left. Those of commands that were killed go first.

    Args:
        parent: where it is to be; None: where temporary files go.

    Raises:
        MemprofError: it cannot be made.
    """
    try:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(parent, prefix=prefix)
        folder, lock = _make(parent, prefix)
    except OSError as error:
        raise MemprofError(
            f"there is no place for temporary files ({error.strerror or error}): make room, or set TMPDIR to a folder"
            " that can be written to"
        ) from error
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def remove_abandoned(parent: Path, *, prefix: str = "memprof-") -> None:
    """Remove the folders of commands that were killed, and end what still works in them."""
    if fcntl is None:
        return
    name = re.compile(re.escape(prefix) + r"[a-z0-9_]{8}")  # as `tempfile.mkdtemp` makes them
    for folder in parent.glob(f"{prefix}*"):
        if not name.fullmatch(folder.name) or not _is_ours(folder):
            continue
        with _locked(folder) as is_abandoned:
            if is_abandoned:
                process_tree.end_all_of(folder)
                remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder, also where somebody has made parts of it read-only."""
    with suppress(OSError):  # what cannot be changed cannot be removed either
        folder.chmod(stat.S_IRWXU)
        for path, names, _ in os.walk(folder):
            for child in (Path(path, name) for name in names):
                if not child.is_symlink():
                    child.chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_file():  # the user's code has put one there
        folder.unlink()


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):  # a file system without locks: there nobody takes a folder for abandoned
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)  # another command had locked it first, and removed it


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for a while, if its command is gone. Yields whether it is."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield _is_old_and_empty(folder)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_abandoned = False
    else:
        is_abandoned = True
    try:
        yield is_abandoned
    finally:
        os.close(lock)


def _is_old_and_empty(folder: Path) -> bool:
    """Whether it is one of a command that was killed before it could lock it."""
    try:
        return time.time() - folder.lstat().st_mtime > _UNLOCKED_SECONDS and not any(folder.iterdir())
    except OSError:
        return False
