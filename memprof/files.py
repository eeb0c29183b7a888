"""Files that memprof leaves with the user: each is there as a whole or not at all, and no name is taken twice.

    write_whole(Path("report.html"), page.encode(), what="the report")
    path = write_whole(Path("step.memprof"), fill, what="the capture", if_taken=IfTaken.NUMBER)

A file is written without a name, or under a hidden one, and gets its name when all of it is on the disk. A name is
taken by a hard link, which fails where another command was quicker: two commands never overwrite each other's files.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from memprof.errors import MemprofError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HIDDEN_PREFIX = ".memprof-"  # with a few digits after it: short, so that a name may be as long as the disk allows
_OPEN_FILES = Path("/proc/self/fd")
# What a file system without hard links, or without files that have no name, says of them.
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EISDIR, errno.EINVAL, errno.EMLINK)


class IfTaken(Enum):
    """What is done where a file of that name exists."""

    REFUSE = "refuse"
    REPLACE = "replace"
    NUMBER = "number"  # the new file gets the next free name: `step-2.memprof`
    MOVE = "move"  # the earlier file gets a free name, `step-1.memprof`, and the new one the plain name


def write_whole(
    path: Path,
    content: bytes | Callable[[BinaryIO], object],
    *,
    what: str,
    if_taken: IfTaken = IfTaken.REFUSE,
) -> Path:
    """Write a file so that `path` holds all of it, or is as it was before.

    Args:
        content: what it is to hold, or a function that writes it to an open file, which it may also read back.
        what: the file holds, for messages: `the capture`.
        if_taken: what is done where there is a file of that name, also where it appears while this one is written.

    Returns:
        The path that it has: another one than was asked for with `IfTaken.NUMBER` only.

    Raises:
        MemprofError: the file exists, or cannot be written; the message names it.
    """
    check_writable(path, overwrite=if_taken is not IfTaken.REFUSE)
    # A link stays a link: what it points to is what the user means.
    place = Path(os.path.realpath(path)) if if_taken in (IfTaken.REPLACE, IfTaken.MOVE) else path
    try:
        with _unnamed_file(place.parent) as unnamed:
            unnamed.file.write(content) if isinstance(content, bytes) else content(unnamed.file)
            unnamed.file.flush()
            os.fsync(unnamed.file.fileno())
            if if_taken is IfTaken.MOVE:
                with _locked(place.parent):
                    _keep_beside(place)
                    unnamed.replace(place)
                return path
            if if_taken is IfTaken.REPLACE:
                unnamed.replace(place)
                return path
            for candidate in numbered(path) if if_taken is IfTaken.NUMBER else [path]:
                if unnamed.take(candidate):
                    return candidate
    except OSError as error:
        raise MemprofError(f"{what} cannot be written to {path}: {error.strerror or error}") from error
    raise _exists_already(path)


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Find out before the work starts whether a file can be written.

    Raises:
        MemprofError: the file exists and must not be overwritten, or is none that can be, its name is too long, or its
            folder is missing or read-only.
    """
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise MemprofError(f"{path} is a folder; give the name of a file")
    if (mode is not None or path.is_symlink()) and not overwrite:
        raise _exists_already(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise MemprofError(f"{path} is no regular file, and is not replaced; choose another name with -o")
    parent = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not parent.is_dir():
        raise MemprofError(f"the folder {parent} does not exist; create it, or choose another with -o")
    if not os.access(parent, os.W_OK):
        raise MemprofError(f"the folder {parent} cannot be written to; choose another with -o, or use --no-save")


def make_folder(path: Path) -> None:
    """Make a folder, with those that it is in, unless it is there.

    Raises:
        MemprofError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise MemprofError(f"the folder {path} cannot be created: {_reason(error)}") from error


def check_folder_writable(path: Path) -> None:
    """Find out before the work starts whether files can be written into a folder, which need not be there yet.

    Raises:
        MemprofError: it is a file, or it can neither be made nor written to.
    """
    mode = _mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise MemprofError(f"{path} exists already and is no folder; choose another with -o")
    existing = next(each for each in (path, *path.absolute().parents) if _mode(each) is not None)
    if not existing.is_dir():
        raise MemprofError(f"{path} cannot be made, for {existing} is no folder; choose another with -o")
    if not os.access(existing, os.W_OK):
        raise MemprofError(f"the folder {existing} cannot be written to; choose another with -o, or use --no-save")


def as_argument(path: Path | str) -> str:
    """The path as a shell takes it for an argument: quoted, and never an option (`./-name`)."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def numbered(path: Path) -> Iterator[Path]:
    """`path`, then the same with a number before its suffix: `step.memprof`, `step-2.memprof`, ..."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnnamedFile:
    """A file that is being written. `hidden` is the name that it has for now; None: it has none at all."""

    file: BinaryIO
    hidden: Path | None
    folder: int | None

    def take(self, path: Path) -> bool:
        """Give it a name, unless that is taken."""
        try:
            if self.hidden is None:
                self._link(path)
            else:
                self.file.close()  # Windows gives no name to an open file
                _link_or_move(self.hidden, path)
        except FileExistsError:
            return False
        return True

    def replace(self, path: Path) -> None:
        """Give it a name, in the place of the file that has it."""
        hidden = self.hidden
        if hidden is None:
            hidden = _hidden_name(path.parent)
            self._link(hidden)
        else:
            self.file.close()
        try:
            if path.exists():
                hidden.chmod(stat.S_IMODE(path.stat().st_mode))
            os.replace(hidden, path)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise

    def _link(self, path: Path) -> None:
        # Given the descriptor of a folder, Python follows the link that /proc has for an open file; else it does not.
        source = str(_OPEN_FILES / str(self.file.fileno()))
        os.link(source, path, src_dir_fd=self.folder, follow_symlinks=True)


@contextmanager
def _unnamed_file(folder: Path) -> Iterator[_UnnamedFile]:
    """A new file in a folder, gone at the end unless it was given a name.

    Where the system can (Linux, on most file systems) it has no name until then: not even a command that is killed
    leaves anything behind.
    """
    descriptor, hidden = _open_without_name(folder), None
    if descriptor is None:
        hidden = _hidden_name(folder)
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file, _descriptor_of(folder) as folder_descriptor:
            yield _UnnamedFile(file=file, hidden=hidden, folder=folder_descriptor)
    finally:
        if hidden is not None:
            hidden.unlink(missing_ok=True)


def _open_without_name(folder: Path) -> int | None:
    if not hasattr(os, "O_TMPFILE") or not _OPEN_FILES.is_dir():
        return None
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o666)
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return None
        raise


@contextmanager
def _descriptor_of(folder: Path) -> Iterator[int | None]:
    """A descriptor of a folder; None on Windows, which opens no folders."""
    if fcntl is None:
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _keep_beside(path: Path) -> None:
    """Give the file of a name, if there is one, a second name: `step-1.memprof`."""
    for number in itertools.count(1):
        try:
            os.link(path, path.with_name(f"{path.stem}-{number}{path.suffix}"))
        except FileNotFoundError:
            return
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            _move_beside(path, number)
        return


def _move_beside(path: Path, number: int) -> None:
    """The same on a file system without hard links."""
    while os.path.lexists(beside := path.with_name(f"{path.stem}-{number}{path.suffix}")):
        number += 1
    with suppress(FileNotFoundError):
        os.replace(path, beside)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let other commands wait that give names in a folder, where the file system has locks."""
    with _descriptor_of(folder) as descriptor:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _link_or_move(hidden: Path, path: Path) -> None:
    """Raises `FileExistsError` where the name is taken."""
    try:
        os.link(hidden, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        # A file system without hard links: an empty file takes the name, and is replaced at once.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o666))
        os.replace(hidden, path)


def _hidden_name(folder: Path) -> Path:
    return folder / f"{_HIDDEN_PREFIX}{secrets.token_hex(8)}"


def _mode(path: Path) -> int | None:
    """What kind of file a path leads to; None where there is none.

    Raises:
        MemprofError: there can be none of that name.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        raise impossible_name(path, error) from error


def impossible_name(path: Path | str, error: OSError | ValueError) -> MemprofError:
    """What to say where the system refuses a name, mostly for its length."""
    shown = f"{str(path)[:60]}..." if len(str(path)) > 80 else repr(str(path))
    return MemprofError(f"no file can have the name {shown}: {_reason(error)}")


def _exists_already(path: Path) -> MemprofError:
    return MemprofError(f"{path} exists already; choose another name with -o, or overwrite it with --force")


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
