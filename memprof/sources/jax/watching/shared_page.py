"""A memory page that a script's processes share with the command: errors of the watcher, and its stop mark.

The page is a file in the work folder, created before the script starts and mapped into memory. So the watcher can note
an error even if the disk is full or no file descriptor is left.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

_FILE = "page"
_PAGE_BYTES = 8192
_MAX_TEXT = 300
_STOP, _STOP_MARK = _PAGE_BYTES - 1, b"\1"  # the last byte; the errors come first


class SharedPage:
    """The page in a process of the script."""

    def __init__(self, folder: Path) -> None:
        self._page: mmap.mmap | None = None
        with suppress(OSError), (folder / _FILE).open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)

    def note(self, action: str, error: BaseException) -> None:
        """Note an error of the watcher once, if the page has room."""
        line = f"{action}: {_text(error)}"[:_MAX_TEXT].replace("\n", " ").replace("\0", " ") + "\n"
        data = line.encode(errors="replace")
        if self._page is None or self._page.find(data) >= 0:
            return
        end = self._page.find(b"\0")
        if 0 <= end < _STOP - len(data):
            self._page[end : end + len(data)] = data

    def mark_stop(self) -> bool:
        """Mark that the script stops because the watcher has seen enough, and return whether the command can see it."""
        if self._page is not None:
            self._page[_STOP:] = _STOP_MARK
        return self._page is not None


def make_page(folder: Path) -> None:
    """Write an empty page."""
    (folder / _FILE).write_bytes(bytes(_PAGE_BYTES))


def read_faults(folder: Path) -> list[str]:
    """Read the errors of the watcher, each as a line of text."""
    if not (folder / _FILE).exists():
        return ["the script deleted the folder for temporary files"]
    return (folder / _FILE).read_bytes().partition(b"\0")[0].decode(errors="replace").splitlines()


def has_seen_enough(folder: Path) -> bool:
    """Whether the watcher has stopped the script."""
    try:
        return (folder / _FILE).read_bytes()[_STOP:] == _STOP_MARK
    except OSError:
        return False


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # the error's class may be the user's, and its `__str__` may raise
        return type(error).__name__
