"""Temporary folders of a command. The next command removes the folders of killed ones.

A command keeps its folder locked until it ends, and the system releases the lock of any dead process. So a memprof
folder that can be locked is abandoned.
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

from memprof.errors import MemprofError
from memprof.sources.jax.processes import process_tree

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = "in-use.lock"
_UNLOCKED_SECONDS = 60.0  # a new folder is briefly without its lock


@contextmanager
def work_folder(parent: Path | None = None, *, prefix: str = "memprof-") -> Iterator[Path]:
    """Create a folder that is removed when the block exits; first remove the folders of killed commands.

    Args:
        parent: the folder's parent; None for the system's folder for temporary files.

    Raises:
        MemprofError: the folder cannot be created.
    """
    try:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(parent, prefix=prefix)
        folder, lock = _make(parent, prefix)
    except OSError as error:
        raise MemprofError(
            f"temporary files cannot be written ({error.strerror or error}): free some space, or set TMPDIR to a "
            "writable folder"
        ) from error
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def remove_abandoned(parent: Path, *, prefix: str = "memprof-") -> None:
    """Remove the folders of killed commands, and end the processes that still use them."""
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
    """Remove a folder, even if parts of it are read-only."""
    with suppress(OSError):  # a file whose mode cannot be changed cannot be removed either
        folder.chmod(stat.S_IRWXU)
        for path, names, _ in os.walk(folder):
            for child in (Path(path, name) for name in names):
                if not child.is_symlink():
                    child.chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_file():  # the user's code has put a file in its place
        folder.unlink()


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder, and return it with the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):  # a file system without locks, where no folder counts as abandoned
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)  # another command locked it first and removed it


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder during the block if its command has ended, and yield whether it has."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield _is_old_and_empty(folder)
        return
    is_abandoned = False
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_abandoned = True
    try:
        yield is_abandoned
    finally:
        os.close(lock)


def _is_old_and_empty(folder: Path) -> bool:
    """Whether the folder belongs to a command that was killed before it could lock the folder."""
    try:
        return time.time() - folder.lstat().st_mtime > _UNLOCKED_SECONDS and not any(folder.iterdir())
    except OSError:
        return False
