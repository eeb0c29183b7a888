"""Write files atomically: a file exists completely or not at all, and concurrent commands never overwrite each other.

    write_whole(Path("report.html"), page.encode(), what="the report")
    path = write_whole(Path("step.memprof"), fill, what="the capture", if_taken=IfTaken.NUMBER)

A file is written without a name, or under a hidden one, and gets its final name once its content is on the disk. A
hard link claims the name, and fails if another command has claimed it first.
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

_HIDDEN_PREFIX = ".memprof-"  # followed by 16 digits; independent of the final name, which may be as long as allowed
_OPEN_FILES = Path("/proc/self/fd")
# Errors of file systems that lack hard links or unnamed files.
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EISDIR, errno.EINVAL, errno.EMLINK)


class IfTaken(Enum):
    """What to do if a file of the requested name exists."""

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
    """Write a file atomically: `path` holds the whole content, or is unchanged.

    Args:
        path: the requested path.
        content: the content, or a function that writes it to an open binary file. The function may also read the file.
        what: a noun phrase for the content, used in messages: `the capture`.
        if_taken: what to do if a file of that name exists, or appears while this one is written.

    Returns:
        The path of the file. It differs from `path` only with `IfTaken.NUMBER`.

    Raises:
        MemprofError: the file exists, or cannot be written; the message names it.
    """
    check_writable(path, overwrite=if_taken is not IfTaken.REFUSE)
    # A symbolic link stays, and its destination is replaced, as the user expects.
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
    """Check that a file can be written, before the work starts.

    Args:
        path: the file to write.
        overwrite: whether an existing file may be overwritten.

    Raises:
        MemprofError: the file exists and must not be overwritten, it is not a regular file, its name is too long, or
            its folder is missing or read-only.
    """
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise MemprofError(f"{path} is a folder; give the name of a file")
    if (mode is not None or path.is_symlink()) and not overwrite:
        raise _exists_already(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise MemprofError(f"{path} is not a regular file, so it is not replaced; choose another name with -o")
    parent = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not parent.is_dir():
        raise MemprofError(f"the folder {parent} does not exist; create it, or choose another with -o")
    if not os.access(parent, os.W_OK):
        raise MemprofError(f"the folder {parent} cannot be written to; choose another with -o, or use --no-save")


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless it exists.

    Raises:
        MemprofError: the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise MemprofError(f"the folder {path} cannot be created: {_reason(error)}") from error


def check_folder_writable(path: Path) -> None:
    """Check that files can be written into a folder, before the work starts. The folder need not exist yet.

    Raises:
        MemprofError: the path is a file, or the folder cannot be created or written to.
    """
    mode = _mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise MemprofError(f"{path} exists already and is not a folder; choose another with -o")
    existing = next(each for each in (path, *path.absolute().parents) if _mode(each) is not None)
    if not existing.is_dir():
        raise MemprofError(f"{path} cannot be created, because {existing} is not a folder; choose another with -o")
    if not os.access(existing, os.W_OK):
        raise MemprofError(f"the folder {existing} cannot be written to; choose another with -o, or use --no-save")


def as_argument(path: Path | str) -> str:
    """Format a path as a shell argument: quoted, and never mistaken for an option (`./-name`)."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def numbered(path: Path) -> Iterator[Path]:
    """Yield `path`, then `path` with a number before its suffix: `step.memprof`, `step-2.memprof`, ..."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnnamedFile:
    """A file that is being written, before it gets its final name.

    Attributes:
        file: the open file.
        hidden: its temporary name; None if it has no name.
        folder: a descriptor of its folder; None on Windows.
    """

    file: BinaryIO
    hidden: Path | None
    folder: int | None

    def take(self, path: Path) -> bool:
        """Name the file; return False if the name is taken."""
        try:
            if self.hidden is None:
                self._link(path)
            else:
                self.file.close()  # Windows cannot rename an open file
                _link_or_move(self.hidden, path)
        except FileExistsError:
            return False
        return True

    def replace(self, path: Path) -> None:
        """Name the file, replacing the file of that name and keeping its permissions."""
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
        # Python follows the /proc link of an open file only if it is given the descriptor of a folder.
        source = str(_OPEN_FILES / str(self.file.fileno()))
        os.link(source, path, src_dir_fd=self.folder, follow_symlinks=True)


@contextmanager
def _unnamed_file(folder: Path) -> Iterator[_UnnamedFile]:
    """Create a file in a folder. It is removed at the end of the block unless it was given a name.

    If the system supports it (Linux, on most file systems), the file has no name until then, so that even a killed
    command leaves nothing behind.
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
    """Open a descriptor of a folder; None on Windows, which cannot open folders."""
    if fcntl is None:
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _keep_beside(path: Path) -> None:
    """Give the existing file, if any, a second name: `step-1.memprof`."""
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
    """Rename the existing file instead, on a file system without hard links."""
    while os.path.lexists(beside := path.with_name(f"{path.stem}-{number}{path.suffix}")):
        number += 1
    with suppress(FileNotFoundError):
        os.replace(path, beside)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Block other commands that name files in the folder, if the file system supports locks."""
    with _descriptor_of(folder) as descriptor:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _link_or_move(hidden: Path, path: Path) -> None:
    """Give a hidden file its final name.

    Raises:
        FileExistsError: the name is taken.
    """
    try:
        os.link(hidden, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        # Without hard links, an empty file claims the name and is replaced at once.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o666))
        os.replace(hidden, path)


def _hidden_name(folder: Path) -> Path:
    return folder / f"{_HIDDEN_PREFIX}{secrets.token_hex(8)}"


def _mode(path: Path) -> int | None:
    """Return the mode of the file at a path; None if no file exists there.

    Raises:
        MemprofError: no file can have that name.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        raise impossible_name(path, error) from error


def impossible_name(path: Path | str, error: OSError | ValueError) -> MemprofError:
    """Return the error for a name that the system rejects, usually because of its length."""
    shown = f"{str(path)[:60]}..." if len(str(path)) > 80 else repr(str(path))
    return MemprofError(f"{shown} is not a valid file name: {_reason(error)}")


def _exists_already(path: Path) -> MemprofError:
    return MemprofError(f"{path} exists already; choose another name with -o, or overwrite it with --force")


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
