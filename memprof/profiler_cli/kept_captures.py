"""The folder of a command that makes several captures: each is written as soon as it exists.

A command that is repeated finds its plans in the cache of plans, and a capture that has not changed keeps its file.
Without a name from the user, the folder is the first of `compare-mlp`, `compare-mlp-2`, ... that is free, or that holds
only captures of the same request. A folder that another command is writing to belongs to that one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memprof.analysis.records.capture import Capture
from memprof.errors import MemprofError
from memprof.files import IfTaken, check_folder_writable, make_folder, numbered
from memprof.profiler_cli.capture_names import file_name, stem
from memprof.profiler_cli.console import say
from memprof.sources.capture_file import is_same, read_capture, without_source, write_capture

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class KeptCaptures:
    """Writes captures into a folder. Without a folder it writes none."""

    def __init__(self, folder: Path | None, *, with_source: bool = True) -> None:
        self._with_source = with_source
        self.folder = folder
        self._num_written = 0
        self._num_unchanged = 0

    def keep(self, capture: Capture, *, detail: str = "") -> None:
        """Write a capture, so that no finished compile is lost. A file that holds the same already stays.

        Args:
            detail: distinguishes this capture from the others of its name.

        Raises:
            MemprofError: it cannot be written.
        """
        if self.folder is None:
            return
        make_folder(self.folder)
        path = self.folder / f"{file_name(stem(capture), detail)}.memprof"
        if not self._with_source:
            capture = without_source(capture)
        if _is_among(numbered(path), capture):
            self._num_unchanged += 1
            return
        write_capture(capture, path, if_taken=IfTaken.NUMBER)
        self._num_written += 1

    def say_where(self, hint: str = "") -> None:
        """Say where the captures are."""
        if self._num_written:
            say(f"captures written to {self.folder}{hint}")
        elif self._num_unchanged:
            say(f"the captures in {self.folder} are unchanged{hint}")


@contextmanager
def kept_captures(
    output: Path | None,
    name: str,
    *,
    save: bool,
    with_source: bool,
    is_of_it: Callable[[Capture], bool],
) -> Iterator[KeptCaptures]:
    """The folder of a command, until it ends.

    Args:
        output: the folder that the user named; None: one that begins with `name`.
        save: whether captures are written at all.
        with_source: whether captures that are written hold the text of source lines.
        is_of_it: whether a capture was made by the same request.

    Raises:
        MemprofError: it cannot be created or written to.
    """
    if not save:
        yield KeptCaptures(None)
        return
    check_folder_writable(output or Path(name))
    if output is not None:
        yield KeptCaptures(output, with_source=with_source)
        return
    with _first_unused(Path(name), is_of_it) as folder:
        try:
            yield KeptCaptures(folder, with_source=with_source)
        finally:
            with suppress(OSError):  # it holds captures
                folder.rmdir()


def _is_among(paths: Iterator[Path], capture: Capture) -> bool:
    """Whether one of the files, up to the first missing one, holds the same program with the same facts."""
    for path in paths:
        try:
            found = read_capture(path)
        except MemprofError:
            if not os.path.lexists(path):
                return False
            continue
        if is_same(found, capture):
            return True
    return False


@contextmanager
def _first_unused(path: Path, is_of_it: Callable[[Capture], bool]) -> Iterator[Path]:
    for folder in numbered(path):
        if not os.path.lexists(folder):
            with suppress(FileExistsError):  # another command was quicker
                _make(folder)
        if not os.path.isdir(folder):
            continue
        with _locked(folder) as is_ours:
            if is_ours and all(found is not None and is_of_it(found) for found in _captures_in(folder)):
                yield folder
                return


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        raise
    except OSError as error:
        raise MemprofError(f"The folder {folder} cannot be created: {error.strerror or error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this command alone writes to a folder. The system gives the lock back, however the command ends."""
    if fcntl is None:
        yield True
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # it is gone, or somebody else's
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield _is_still(descriptor, folder)
    finally:
        os.close(descriptor)


def _is_still(descriptor: int, folder: Path) -> bool:
    """Whether the folder is the one that was opened: it may have gone, and another command have made it anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False


def _captures_in(folder: Path) -> Iterator[Capture | None]:
    """The captures in a folder; None for any other file."""
    for path in folder.iterdir():
        try:
            yield read_capture(path)
        except MemprofError:
            yield None
