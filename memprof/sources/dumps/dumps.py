"""Compiled programs in files from elsewhere: XLA's dumps, and log directories of XProf and TensorBoard.

    XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_proto" python train.py
    programs_in([Path("DIR")])

A program is usable only with its buffer assignment. Three sources have it: XLA's dump after optimizations, XProf's file
beside a trace (`*.hlo_proto.pb`), and the stat `Hlo Proto` in the trace itself. The module needs no JAX (except XLA's
parser for text dumps), and compiles nothing.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any

from google.protobuf.message import DecodeError

from memprof.analysis.hlo.hlo_proto import parse_memory_report
from memprof.analysis.records.device_family import DeviceFamily, all_families
from memprof.errors import MemprofError
from memprof.sources.dumps.text_dumps import hlo_proto_of_texts, memory_report_of_text
from memprof.sources.jax.running.xprof_log import XSpace
from memprof.untrusted import clean, open_regular

_MAX_BYTES = 1 << 30  # of one decompressed file
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = "(" + "|".join(map(re.escape, _OPENERS)) + ")?"
_OF_XPROF = re.compile(r"(?P<name>.+?)(?:\(\d+\))?\.hlo_proto\.pb" + _PACKED)
_TRACE = re.compile(r".+\.xplane\.pb" + _PACKED)
# Files beside a dumped program; a text dump cannot be read without the first two.
_ASSIGNMENT, _LIVE_RANGES, _REPORT = "buffer-assignment", "live-range", "memory-usage-report"
_CONTENTS = {_ASSIGNMENT: "the place of each value", _LIVE_RANGES: "the live range of each value"}
_BESIDE = re.compile(
    rf".+after_optimizations-(?:{_ASSIGNMENT}(?:-values)?|{_LIVE_RANGES}|{_REPORT})\.(?:pb|txt)" + _PACKED
)
AS_PROTO = 'dump again with XLA_FLAGS="--xla_dump_to=FOLDER --xla_dump_hlo_as_proto"'


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProgram:
    """A compiled program in a file from elsewhere.

    Attributes:
        name: name of its module, such as `jit_train_step`.
        file: the file that contains it.
        written: modification time of the file, in seconds since 1970.
        hlo_proto: the serialized `HloProto`; for a text dump that cannot be converted, the program's text.
        platform: `cuda`, `cpu` or `tpu`, if the file's name shows it; else empty.
        compute_capability: compute capability such as `9.0`, if the file's name shows it.
        memory_report: XLA's own memory report, dumped beside the program; empty if missing.
        target_config: XLA's file that describes the GPU; None if missing.
        proto_without_limit: as in a capture.
        damage: the error in its text dump; None if it is readable or a proto.
    """

    name: str
    file: Path
    written: float
    hlo_proto: bytes
    platform: str = ""
    compute_capability: str | None = None
    memory_report: bytes = b""
    target_config: Path | None = None
    proto_without_limit: bytes = b""
    damage: MemprofError | None = None

    @property
    def is_text(self) -> bool:
        """Whether the program was dumped as text."""
        return ".txt" in self.file.name


def programs_in(paths: Sequence[Path]) -> Iterator[FoundProgram]:
    """Yield the distinct programs in files and folders one by one, because a large job has hundreds.

    Raises:
        MemprofError: a path is missing, contains no program, or cannot be read.
    """
    seen: set[bytes] = set()
    for path in paths:
        num_found = 0
        for file in _files_in(path):
            for program in _programs_of(file):
                num_found += 1
                digest = hashlib.sha256(program.hlo_proto).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield program
        if not num_found:
            raise MemprofError(f"{path} contains no compiled program: it is a trace without the stat `Hlo Proto`")


def _files_in(path: Path) -> list[Path]:
    """Return a path's files whose names mark them as programs; a file that the user gives counts with any name."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise MemprofError(f"there is no file or folder {path}: {error.strerror or error}") from error
    if not is_folder:
        if _BESIDE.fullmatch(path.name):
            raise MemprofError(f"{path} belongs to a program: give its folder")
        return [path]
    try:
        files = sorted(each for each in path.rglob("*") if os.path.isfile(each))
    except OSError as error:
        raise MemprofError(f"{path} cannot be searched: {error.strerror or error}") from error
    found = [each for each in files if any(kind.fullmatch(each.name) for kind in (_dump(), _OF_XPROF, _TRACE))]
    if found:
        protos = {_without_kind(each) for each in found if ".hlo.pb" in each.name}
        return [each for each in found if ".hlo.pb" in each.name or _without_kind(each) not in protos]
    raise MemprofError(
        f"{path} contains no compiled program: no *after_optimizations.hlo.pb (or .txt) of XLA's dump, no"
        " *.hlo_proto.pb and no *.xplane.pb of XProf"
    )


def _without_kind(file: Path) -> Path:
    """Return the part of the path that the proto and the text of a program share."""
    return file.with_name(re.sub(r"\.(hlo\.pb|txt)" + _PACKED + "$", "", file.name))


@cache
def _dump() -> re.Pattern[str]:
    """Return the pattern of dump file names, such as `module_0001.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb`.

    If XLA does not name the device family, there is a dot before `after`, and libtpu's number before that
    (`jit_step.cl_1004524046.after_optimizations.hlo.pb`).
    """
    named = "|".join(f"(?P<{each.platform}>{each.dumped_as})" for each in all_families() if each.dumped_as)
    return re.compile(
        rf"(?:module_\d+\.)?(?P<name>.+?)(?:\.cl_\d+)?\.(?:(?P<family>{named})_)?"
        r"after_optimizations\.(?P<kind>hlo\.pb|txt)" + _PACKED
    )


def _programs_of(file: Path) -> Iterator[FoundProgram]:
    written = file.stat().st_mtime
    if _TRACE.fullmatch(file.name):
        for name, hlo_proto in _traced(file):
            yield FoundProgram(name=name, file=file, written=written, hlo_proto=hlo_proto)
        return
    dump = _dump().fullmatch(file.name)
    if dump is None:
        match = _OF_XPROF.fullmatch(file.name)
        name = clean(match["name"] if match else file.name)
        yield FoundProgram(name=name, file=file, written=written, hlo_proto=content_of(file))
        return
    platform = next((each.platform for each in all_families() if _is_for(dump, each)), "")
    stem = file.name[: dump.start("family") if dump["family"] else dump.end("name") + 1]
    target_config = file.with_name(f"{stem}gpu_target_config.pbtxt")
    found = FoundProgram(
        name=clean(dump["name"]),
        file=file,
        written=written,
        hlo_proto=content_of(file),
        platform=platform,
        compute_capability=dump["capability"],
        target_config=target_config if os.path.isfile(target_config) else None,
    )
    if dump["kind"] == "txt":
        yield _of_texts(found)
        return
    report = file.with_name(file.name.replace(".hlo.pb", f"-{_REPORT}.pb"))
    yield replace(found, memory_report=content_of(report) if os.path.isfile(report) else b"")


def _is_for(dump: re.Match[str], family: DeviceFamily) -> bool:
    """Whether the name of a dump belongs to a device family."""
    return not dump["family"] if not family.dumped_as else bool(dump[family.platform])


def _of_texts(found: FoundProgram) -> FoundProgram:
    """Convert a program dumped as text, using the files beside it."""
    file = found.file
    beside = {kind: file.with_name(file.name.replace(".txt", f"-{kind}.txt")) for kind in (*_CONTENTS, _REPORT)}
    texts = {kind: _text(content_of(path)) for kind, path in beside.items() if os.path.isfile(path)}
    report = memory_report_of_text(texts.get(_REPORT, ""))
    try:
        for kind, tells in _CONTENTS.items():
            if kind not in texts:
                total_bytes = parse_memory_report(report).get(0)
                told = f" ({total_bytes:,} bytes in total)" if total_bytes else ""
                raise MemprofError(f"{beside[kind].name} is missing, which holds {tells}{told}: {AS_PROTO}")
        proto = hlo_proto_of_texts(_text(found.hlo_proto), texts[_ASSIGNMENT], texts[_LIVE_RANGES])
    except (MemprofError, ValueError) as error:  # protobuf raises ValueError for a number that is too large
        return replace(found, damage=MemprofError(clean(f"{file} cannot be read: {error}")))
    return replace(found, hlo_proto=proto, memory_report=report)


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _traced(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the programs in a trace, with the names of their modules."""
    try:
        space = XSpace.FromString(content_of(file))
    except DecodeError as error:
        raise MemprofError(f"{file} is not a trace (XSpace), or is damaged: it cannot be parsed") from error
    for plane in space.planes:
        keys = {entry.key for entry in plane.stat_metadata if entry.value.name == "Hlo Proto"}
        for entry in plane.event_metadata:
            for found in entry.value.stats:
                if found.metadata_id in keys and found.bytes_value:
                    yield clean(re.sub(r"\(\d+\)$", "", entry.value.name)), found.bytes_value


def content_of(file: Path) -> bytes:
    """Return the decompressed content of a file.

    Raises:
        MemprofError: the file cannot be read or decompressed, or is too large.
    """
    try:
        with open_regular(file) as opened:
            packed: IO[bytes] = _OPENERS[file.suffix](opened) if file.suffix in _OPENERS else opened
            content = packed.read(_MAX_BYTES + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise MemprofError(f"{file} cannot be read: {reason}") from error
    if len(content) > _MAX_BYTES:
        raise MemprofError(f"{file} holds more than {_MAX_BYTES:,} bytes, more than any program")
    return content
