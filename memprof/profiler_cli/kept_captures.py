"""The folder of a command that makes several captures: each is written as soon as it is there, and found again later.

A command that is repeated takes what an earlier one has finished. Without a name from the user, its folder is the first
of `compare-mlp`, `compare-mlp-2`, ... that is free, or that holds nothing but captures which this command would make
too. A folder that another command is writing to belongs to that one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from memprof.analysis.records.capture import Capture
from memprof.capture.capture_file import read_capture, without_source, write_capture
from memprof.errors import MemprofError
from memprof.files import IfTaken, check_folder_writable, make_folder, numbered
from memprof.profiler_cli.capture_names import file_name, stem
from memprof.profiler_cli.console import say
from memprof.studies.row_key import is_of_row
from memprof.studies.subject import Subject

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class KeptCaptures:
    """What a folder holds that can be taken, and what is put there. Without a folder: nothing."""

    def __init__(
        self, folder: Path | None, subject: Subject, found: Sequence[Capture], *, with_source: bool = True
    ) -> None:
        self._with_source = with_source
        self.folder = folder
        self.taken: list[str] = []
        self.num_written = 0
        self._subject = subject
        self._found = {capture.row: capture for capture in found}

    def finished(self, key: str) -> Capture | None:
        """What an earlier command has compiled with that key, if anything and if it would still be the same."""
        capture = self._found.get(key)
        if capture is None or not is_of_row(capture, key, self._subject):
            return None
        self.taken.append(capture.label)
        return capture

    def keep(self, capture: Capture, *, detail: str = "") -> None:
        """Write a capture: what is finished survives whatever comes after.

        Args:
            detail: what tells this capture from the others of its name.

        Raises:
            MemprofError: it cannot be written.
        """
        if self.folder is None:
            return
        make_folder(self.folder)
        name = file_name(stem(capture), detail)
        if not self._with_source:
            capture = without_source(capture)
        write_capture(capture, self.folder / f"{name}.memprof", if_taken=IfTaken.NUMBER)
        self.num_written += 1

    def say_what_is_there(self, hint: str = "") -> None:
        """Say where the captures are, and which of them are from an earlier command."""
        if self.taken:
            say(f"taken from {self.folder}, not compiled again (--no-resume does): {', '.join(self.taken)}")
        if self.num_written:
            say(f"captures written to {self.folder}{hint}")


@contextmanager
def kept_captures(
    output: Path | None,
    name: str,
    *,
    save: bool,
    resume: bool,
    with_source: bool,
    subject: Subject,
    is_of_it: Callable[[Capture], bool],
) -> Iterator[KeptCaptures]:
    """The folder of a command, until it ends.

    Args:
        output: the folder that the user named; None: one that begins with `name`.
        save: whether there is one at all.
        resume: whether what is in it can be taken.
        with_source: whether captures that are written hold the text of source lines.
        is_of_it: whether a capture is one that this command would make too.

    Raises:
        MemprofError: it cannot be made or written to.
    """
    if not save:
        yield KeptCaptures(None, subject, [])
        return
    check_folder_writable(output or Path(name))
    if output is not None:
        yield KeptCaptures(output, subject, _captures_in(output) if resume else [], with_source=with_source)
        return
    with _first_of_its_own(Path(name), is_of_it, resume=resume) as (folder, found):
        try:
            yield KeptCaptures(folder, subject, found, with_source=with_source)
        finally:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


@contextmanager
def _first_of_its_own(
    path: Path, is_of_it: Callable[[Capture], bool], *, resume: bool
) -> Iterator[tuple[Path, Sequence[Capture]]]:
    for folder in numbered(path):
        if not folder.exists() and not folder.is_symlink():
            with suppress(FileExistsError):  # another command was quicker
                _make(folder)
        if not folder.is_dir():
            continue
        with _locked(folder) as is_ours:
            if not is_ours:
                continue
            names = list(folder.iterdir())
            found = _captures_in(folder) if resume else []
            if len(found) == len(names) and all(map(is_of_it, found)):
                yield folder, found
                return


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        raise
    except OSError as error:
        raise MemprofError(f"The folder {folder} cannot be made: {error.strerror or error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this command alone writes to a folder. The system gives the lock back, however the command ends."""
    if fcntl is None:
        yield True
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
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


def _captures_in(folder: Path) -> list[Capture]:
    """The captures that can be read; whatever else there is does not matter."""
    found = []
    for path in sorted(folder.glob("*.memprof")):
        with suppress(MemprofError):
            found.append(read_capture(path))
    return found
