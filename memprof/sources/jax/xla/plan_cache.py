"""On-disk cache of XLA's plans, reused for identical compiles.

    cache = PlanCache.of_user()
    plan = cache.find(key)                # see `planning.py`; None: it must be compiled
    cache.keep(key, plan)

Each plan is one file, never a pickle, in a folder that only the user can write to. The file begins with a digest:
truncated or damaged files, and files with another key or version, count as missing. Files are written and removed
whole. The modification time of a file is its last use, and the least recently used files are removed first when the
cache exceeds its size limit. Concurrent commands need no lock for this. But if several processes need the same missing
plan, one makes it, and the others wait (`find_or_make`). A cache that cannot be read or written never fails a command:
the command works without it. The module does not need JAX.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from memprof.amounts import parse_bytes
from memprof.analysis.hlo.decoded import FreshCapture
from memprof.errors import MemprofError
from memprof.files import IfTaken, write_whole
from memprof.sources.jax.xla.claims import claimed
from memprof.sources.jax.xla.plan import Plan, PlannedStep, with_plan
from memprof.untrusted import open_regular

FOLDER_VARIABLE, SIZE_VARIABLE = "MEMPROF_CACHE_DIR", "MEMPROF_CACHE_SIZE"
_DEFAULT_SIZE = "1GiB"
SUFFIX, _NOTE_SUFFIX = ".memprof-plan", ".memprof-note"
_OURS = re.compile(r"[0-9a-f]{64}\.memprof-(plan|note)|\.memprof-[0-9a-f]{16}")  # the second: see `files.py`
CLAIMS = ".claims"  # see `claims.py`
_VERSION = b"memprof.plan/6\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_BYTES = 256 << 20  # of a decompressed plan; as in a capture
_MAX_OF_NOTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The number of plans in a cache, and their size on disk."""

    num_plans: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCache:
    """A folder of plans. `limit_bytes` is its maximum compressed size; 0 turns the cache off."""

    folder: Path
    limit_bytes: int

    @classmethod
    def of_user(cls) -> PlanCache:
        """Return the cache that the environment names, or the one in the user's cache folder.

        Raises:
            MemprofError: an environment variable has an invalid value.
        """
        folder = _folder_of_user()
        return cls(folder=folder / "plans", limit_bytes=_limit_bytes() if folder.is_absolute() else 0)

    def find(self, key: str) -> Plan | None:
        """Return the plan with this key, or None if it is missing or damaged."""
        content = self._content(self._path(key), _MAX_BYTES)
        if content is None:
            return None
        with suppress(OSError):  # the disk is read-only, or another command removed the file
            os.utime(self._path(key))
        return _unpacked(content, key)

    def keep(self, key: str, plan: Plan) -> None:
        """Store a plan, replace any file with its key, and remove old plans beyond the size limit."""
        content = _packed(plan, key)
        if len(content) > self.limit_bytes:
            return
        with suppress(OSError, MemprofError):
            if self._is_made():
                if self.find(key) is None:
                    self.remove(key)  # an unusable file under this key, such as a link or an unreadable file
                write_whole(self._path(key), content, what="the plan", if_taken=IfTaken.REPLACE)
                self._make_room()

    def find_or_make(self, key: str, make: Callable[[], Plan], *, waiting: Callable[[], object]) -> Plan:
        """Return the plan with this key; if it is missing, one process at a time makes and stores it.

        Args:
            waiting: called repeatedly while another process makes the plan.

        Raises:
            Exception: whatever `make` or `waiting` raises.
        """
        plan = self.find(key)
        if plan is not None:
            self._make_room()  # the limit may have been lowered
        if plan is not None or not self._is_made():
            return plan or make()
        with claimed(self.folder / CLAIMS, key, waiting=waiting):
            plan = self.find(key)
            if plan is None:
                plan = make()
                self.keep(key, plan)
        return plan

    def find_note(self, key: str) -> bytes | None:
        """Return the note stored under a key: a small result computed from plans."""
        return self._content(self._path(key, _NOTE_SUFFIX), _MAX_OF_NOTE)

    def keep_note(self, key: str, note: bytes) -> None:
        """Store a note."""
        with suppress(OSError, MemprofError):
            if self._is_made():
                write_whole(self._path(key, _NOTE_SUFFIX), note, what="the answer", if_taken=IfTaken.REPLACE)

    def remove(self, key: str) -> None:
        """Remove the plan with this key, which is invalid."""
        with suppress(OSError):
            self._path(key).unlink()

    def is_own(self) -> bool:
        """Whether the folder exists and only this user can write to it."""
        try:
            found = self.folder.lstat()
        except OSError:
            return False
        is_closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_of_user = hasattr(os, "geteuid") and found.st_uid == os.geteuid()  # Windows has no user ids
        return stat.S_ISDIR(found.st_mode) and is_of_user and is_closed

    def why_unused(self) -> str:
        """Return why the cache is unused; empty if plans can at least be read from it."""
        if not self.folder.is_absolute():
            return "no home folder exists"
        if not self.limit_bytes:
            return f"{SIZE_VARIABLE} is 0"
        existing = self._existing()
        if existing == self.folder:
            return (
                "" if self.is_own() else "the folder is writable by others, belongs to another user, or is not a folder"
            )
        if not existing.is_dir():
            return f"{existing} is not a folder"
        return "" if _is_writable(existing) else f"{existing} cannot be written to"

    def is_read_only(self) -> bool:
        """Whether plans can be read but not stored."""
        return not self.why_unused() and not _is_writable(self._existing())

    def usage(self) -> Usage:
        """Return the number and total size of the plans in the cache."""
        sizes = [size for _, size, path in self._files() if path.suffix == SUFFIX]
        return Usage(num_plans=len(sizes), size_bytes=sum(sizes))

    def clear(self) -> Usage:
        """Remove all plans and notes, and return the usage before.

        Raises:
            MemprofError: a file cannot be removed.
        """
        before = self.usage()
        for _, _, path in self._files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise MemprofError(f"{path} cannot be removed: {error.strerror}") from error
        return before

    def _existing(self) -> Path:
        """Return the folder, or its nearest parent that exists."""
        return next(path for path in (self.folder, *self.folder.parents) if path.exists())

    def _is_made(self) -> bool:
        """Create the folder if it is missing, and return whether plans may be stored in it."""
        with suppress(OSError):
            if self.limit_bytes:
                self.folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
                if self.is_own():
                    self.folder.chmod(stat.S_IRWXU & self.folder.stat().st_mode)
                    return True
        return False

    def _path(self, key: str, suffix: str = SUFFIX) -> Path:
        return self.folder / f"{key}{suffix}"

    def _content(self, path: Path, most_bytes: int) -> bytes | None:
        """Return the beginning of a file of the cache, or None if it is missing or the cache is unused."""
        with suppress(OSError, MemprofError):
            if self.limit_bytes and self.is_own():
                with open_regular(path) as file:
                    return file.read(most_bytes)
        return None

    def _make_room(self) -> None:
        files = sorted(self._files())
        too_much = sum(size for _, size, _ in files) - self.limit_bytes
        for _, size, path in files:
            if too_much <= 0:
                return
            with suppress(OSError):  # another command removed it first
                path.unlink()
            too_much -= size

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield the last use (in nanoseconds), the size in bytes and the path of each file of the cache."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _OURS.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime_ns, found.st_size, Path(entry.path)


def checked(planned: PlannedStep, again: Callable[[], PlannedStep]) -> FreshCapture:
    """Decode and check a plan: this takes memory, so callers with several plans call it for one at a time.

    An invalid plan is removed from the user's cache. If it came from there, undamaged but not a plan of this step, it
    is made again.

    Raises:
        MemprofError, InternalError: see `with_plan`.
        Exception: whatever `again` raises.
    """
    try:
        return with_plan(planned)
    except MemprofError:
        if planned.cache_key:
            PlanCache.of_user().remove(planned.cache_key)
        if not planned.plan.is_cached:
            raise
    return checked(again(), again)


def _packed(plan: Plan, key: str) -> bytes:
    body = zlib.compress(plan.encoded(), level=1)
    return _VERSION + _digest(body, key) + body


def _unpacked(content: bytes, key: str) -> Plan | None:
    """Return the plan in a file's content, or None if the content is damaged."""
    begin = len(_VERSION) + _DIGEST_BYTES
    body = content[begin:]
    if content[:begin] != _VERSION + _digest(body, key):
        return None
    unpacking = zlib.decompressobj()
    try:
        plan = Plan.decoded(unpacking.decompress(body, _MAX_BYTES))
    except (zlib.error, msgspec.DecodeError):
        return None
    if not unpacking.eof or not 0 <= plan.compile_seconds < float("inf"):
        return None
    return replace(plan, is_cached=True)


def _digest(body: bytes, key: str) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _folder_of_user() -> Path:
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        from platformdirs import user_cache_path

        return user_cache_path("memprof")  # not absolute if no home folder exists
    if not Path(named).is_absolute():  # the user's code may change the working folder
        raise MemprofError(f"{FOLDER_VARIABLE} is {named!r}, but the absolute path of a folder was expected")
    return Path(named)


def _limit_bytes() -> int:
    text = os.environ.get(SIZE_VARIABLE) or _DEFAULT_SIZE
    if text.strip() == "0":
        return 0
    try:
        return parse_bytes(text)
    except MemprofError as error:
        raise MemprofError(f"{SIZE_VARIABLE} is not the size of a cache: {error}; 0 disables it") from error
