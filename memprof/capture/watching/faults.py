"""The faults of the watcher inside a script: a page in the work folder, which is written before the script starts.

It is mapped into memory. So a fault can be noted when the disk is full, or when no file descriptor is left.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = 8192
_MOST_TEXT = 300
_FILE = "faults"


class Faults:
    """Notes each fault once; all processes of a script share the page."""

    def __init__(self, folder: Path) -> None:
        self._page: mmap.mmap | None = None
        with suppress(OSError), (folder / _FILE).open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)

    def note(self, what: str, error: BaseException) -> None:
        """Note that something failed, if there is room."""
        line = f"{what}: {_text(error)}"[:_MOST_TEXT].replace("\n", " ").replace("\0", " ") + "\n"
        data = line.encode(errors="replace")
        if self._page is None or self._page.find(data) >= 0:
            return
        end = self._page.find(b"\0")
        if 0 <= end < _PAGE_BYTES - len(data):
            self._page[end : end + len(data)] = data


def make_page(folder: Path) -> None:
    """Write an empty page."""
    (folder / _FILE).write_bytes(bytes(_PAGE_BYTES))


def read_faults(folder: Path) -> list[str]:
    """The faults that were noted, each as a line of text."""
    if not (folder / _FILE).exists():
        return ["the script has deleted the folder for temporary files"]
    return (folder / _FILE).read_bytes().partition(b"\0")[0].decode(errors="replace").splitlines()


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # the error is the user's: its `__str__` may raise
        return type(error).__name__
