"""Plans that XLA has made, kept on disk: whoever compiles the same for the same gets the one that is there.

    cache = PlanCache.of_user()
    plan = cache.find(key)                # see `planning.py`; None: it has to be compiled
    cache.keep(key, plan)

A plan is a file of its own in a folder that is the user's alone, and never a pickle. It begins with a digest, so that
what is cut, damaged, or of another key or version is as if it were not there. Files come and go whole, and the time of
a file is that of its last use: when there are more bytes than there may be, those go first that were not used for the
longest time. Commands that work at the same time need no lock for that; but of those that want the same plan, which is
not there yet, one makes it, and the others wait (`find_or_make`). A cache never keeps a command from its answer: where
it cannot be read or written, there is none. Needs no JAX.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memprof.amounts import parse_bytes
from memprof.capture.xla.claims import claimed
from memprof.capture.xla.plan import Plan
from memprof.errors import MemprofError
from memprof.files import IfTaken, write_whole
from memprof.untrusted import open_regular

FOLDER_VARIABLE, SIZE_VARIABLE = "MEMPROF_CACHE_DIR", "MEMPROF_CACHE_SIZE"
_DEFAULT_SIZE = "1GiB"
SUFFIX, _NOTE_SUFFIX = ".memprof-plan", ".memprof-note"
_OURS = re.compile(r"[0-9a-f]{64}\.memprof-(plan|note)|\.memprof-[0-9a-f]{16}")  # the second: see `files.py`
CLAIMS = ".claims"  # see `claims.py`
_VERSION = b"memprof.plan/5\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
# The seconds of the compile, the limit of a kernel, and the lengths of the two protos, of the report and of the
# compiler's refusal. These four and the partitioner's messages follow.
_HEAD = struct.Struct("<dQQQQQ")
_MOST_BYTES = 256 << 20  # of a plan, unpacked; as in a capture
_MOST_OF_NOTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much there is in a cache."""

    num_plans: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCache:
    """A folder of plans. `limit_bytes` is the most that it may hold, packed; 0: nothing is kept, and nothing taken."""

    folder: Path
    limit_bytes: int

    @classmethod
    def of_user(cls) -> PlanCache:
        """The cache that the environment names, else the one in the user's folder for caches.

        Raises:
            MemprofError: a variable of the environment does not say what it should.
        """
        folder = _folder_of_user()
        return cls(folder=folder / "plans", limit_bytes=_limit_bytes() if folder.is_absolute() else 0)

    def find(self, key: str) -> Plan | None:
        """The plan with that key, if it is there and as it was written."""
        if not self.limit_bytes or not self.is_own():
            return None
        path = self._path(key)
        try:
            with open_regular(path) as file:
                content = file.read(_MOST_BYTES)
        except (OSError, MemprofError):
            return None
        with suppress(OSError):  # a disk that can only be read, or another command was quicker
            os.utime(path)
        return _unpacked(content, key)

    def keep(self, key: str, plan: Plan) -> None:
        """Keep a plan, in the place of what may be there under its key, and let go what is too much."""
        content = _packed(plan, key)
        if len(content) > self.limit_bytes:
            return
        with suppress(OSError, MemprofError):
            if self._is_made():
                if self.find(key) is None:
                    self.remove(key)  # what is there instead: a link, say, or a file that nobody may read
                write_whole(self._path(key), content, what="the plan", if_taken=IfTaken.REPLACE)
                self._make_room()

    def find_or_make(self, key: str, make: Callable[[], Plan], *, waiting: Callable[[], object]) -> Plan:
        """The plan with that key; where it is not there, it is made and kept, by one process at a time.

        Args:
            waiting: called again and again while another process makes it.

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
        """The answer that was kept under a key: something small that was made from plans."""
        if not self.limit_bytes or not self.is_own():
            return None
        try:
            with open_regular(self.folder / f"{key}{_NOTE_SUFFIX}") as file:
                return file.read(_MOST_OF_NOTE)
        except (OSError, MemprofError):
            return None

    def keep_note(self, key: str, note: bytes) -> None:
        """Keep an answer."""
        with suppress(OSError, MemprofError):
            if self._is_made():
                write_whole(self.folder / f"{key}{_NOTE_SUFFIX}", note, what="the answer", if_taken=IfTaken.REPLACE)

    def remove(self, key: str) -> None:
        """Remove the plan with that key, which is not what it should be."""
        with suppress(OSError):
            self._path(key).unlink()

    def is_own(self) -> bool:
        """Whether the folder is there, and nobody but this user can write to it."""
        try:
            found = self.folder.lstat()
        except OSError:
            return False
        is_closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_of_user = hasattr(os, "geteuid") and found.st_uid == os.geteuid()  # Windows has no such numbers
        return stat.S_ISDIR(found.st_mode) and is_of_user and is_closed

    def why_unused(self) -> str:
        """Why plans are neither kept in it nor taken from it; empty where they are taken at least."""
        if not self.folder.is_absolute():
            return "there is no home folder"
        if not self.limit_bytes:
            return f"{SIZE_VARIABLE} is 0"
        existing = self._existing()
        if existing == self.folder:
            return "" if self.is_own() else "others can write to the folder, or it is another user's, or none"
        if not existing.is_dir():
            return f"{existing} is no folder"
        return "" if _is_writable(existing) else f"{existing} cannot be written to"

    def is_read_only(self) -> bool:
        """Whether plans are taken from it, but none can be kept."""
        return not self.why_unused() and not _is_writable(self._existing())

    def usage(self) -> Usage:
        """How much there is in it now."""
        sizes = [size for _, size, path in self._files() if path.suffix == SUFFIX]
        return Usage(num_plans=len(sizes), size_bytes=sum(sizes))

    def clear(self) -> Usage:
        """Remove all plans, and say how much that was.

        Raises:
            MemprofError: one cannot be removed.
        """
        before = self.usage()
        for _, _, path in self._files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise MemprofError(f"{path} cannot be removed: {error.strerror}") from error
        return before

    def _existing(self) -> Path:
        """The folder, or the nearest of those that it is in which is there."""
        return next(path for path in (self.folder, *self.folder.parents) if path.exists())

    def _is_made(self) -> bool:
        """Make the folder, unless it is there. Returns whether it is this user's alone, and anything may be kept."""
        with suppress(OSError):
            if self.limit_bytes:
                self.folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
                if self.is_own():
                    self.folder.chmod(stat.S_IRWXU & self.folder.stat().st_mode)
                    return True
        return False

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _make_room(self) -> None:
        files = sorted(self._files())
        too_much = sum(size for _, size, _ in files) - self.limit_bytes
        for _, size, path in files:
            if too_much <= 0:
                return
            with suppress(OSError):  # another command was quicker
                path.unlink()
            too_much -= size

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """When each file of ours was used last, in nanoseconds, its bytes and its path."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _OURS.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime_ns, found.st_size, Path(entry.path)


def _packed(plan: Plan, key: str) -> bytes:
    parts = plan.hlo_proto, plan.proto_without_limit, plan.memory_report, plan.refusal.encode()
    head = _HEAD.pack(plan.compile_seconds, plan.kernel_limit_bytes, *map(len, parts))
    messages = "\n".join(plan.partitioner_messages).encode()
    body = zlib.compress(b"".join((head, *parts, messages)), level=1)
    return _VERSION + _digest(body, key) + body


def _unpacked(content: bytes, key: str) -> Plan | None:
    """The plan in a file; None where it is not what was written."""
    begin = len(_VERSION) + _DIGEST_BYTES
    body = content[begin:]
    if content[:begin] != _VERSION + _digest(body, key):
        return None
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(body, _MOST_BYTES)
        seconds, kernel_limit_bytes, *lengths = _HEAD.unpack_from(data)
    except (zlib.error, struct.error):
        return None
    if not unpacking.eof or not 0 <= seconds < float("inf"):
        return None
    rest = io.BytesIO(data[_HEAD.size :])
    hlo_proto, proto_without_limit, memory_report, refusal = map(rest.read, lengths)
    return Plan(
        hlo_proto=hlo_proto,
        memory_report=memory_report,
        totals=None,
        compile_seconds=seconds,
        partitioner_messages=tuple(rest.read().decode("utf-8", errors="replace").splitlines()),
        proto_without_limit=proto_without_limit,
        refusal=refusal.decode("utf-8", errors="replace"),
        kernel_limit_bytes=kernel_limit_bytes,
        is_cached=True,
    )


def _digest(body: bytes, key: str) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _folder_of_user() -> Path:
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        from platformdirs import user_cache_path

        return user_cache_path("memprof")  # not absolute where there is no home
    if not Path(named).is_absolute():  # the user's code may change the folder that it would begin at
        raise MemprofError(f"{FOLDER_VARIABLE} is {named!r}, but the absolute path of a folder was expected")
    return Path(named)


def _limit_bytes() -> int:
    text = os.environ.get(SIZE_VARIABLE) or _DEFAULT_SIZE
    if text.strip() == "0":
        return 0
    try:
        return parse_bytes(text)
    except MemprofError as error:
        raise MemprofError(f"{SIZE_VARIABLE} is not the size of a cache: {error}; 0 turns it off") from error
