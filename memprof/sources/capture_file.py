"""The capture file, `NAME.memprof`: a zip archive with three or four members.

    manifest.json         all but the program: versioned JSON, the fields of `analysis.records.capture.Capture`
    program.hlo.pb        the serialized `xla.HloProto` as XLA wrote it
    without_limit.hlo.pb  the same program compiled without a memory limit, if XLA recomputes values on its own
    trace.json            instead of the programs, the trace of a step that is not compiled
    SHA256SUMS            the digests of the other members, in the format of `sha256sum`

The file never contains a pickle, so a capture from elsewhere is safe to open. A reader limits the size of its input,
checks it against the digests, and decodes it with a schema of types and ranges (`untrusted.py`). A capture is therefore
either unchanged or rejected with a one-sentence error. Reading needs no JAX.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from memprof.analysis.memory.checks import replay_totals
from memprof.analysis.records.capture import MAX_OPERATIONS, Capture
from memprof.analysis.records.engine import fault_of as fault_of_engine
from memprof.analysis.records.trace import fault_of as fault_of_trace
from memprof.errors import MemprofError
from memprof.files import IfTaken, write_whole
from memprof.sources.pool_settings import pool_settings
from memprof.untrusted import UnfitError, as_record, clean, open_regular, parse_json, quote

SCHEMA_NAME, SCHEMA_VERSION = "memprof.capture", 2
_MANIFEST, _PROGRAM, _SUMS = "manifest.json", "program.hlo.pb", "SHA256SUMS"
_WITHOUT_LIMIT, _TRACE = "without_limit.hlo.pb", "trace.json"
# Maximum decompressed size of each member. A step of GPT-2 small has a manifest of 90 KB and a program of 5 MB.
_MAX_MEMBER_BYTES = {
    _MANIFEST: 16 << 20,
    _PROGRAM: 256 << 20,
    _WITHOUT_LIMIT: 256 << 20,
    _TRACE: 256 << 20,
    _SUMS: 1 << 10,
}
_MAX_FILE_BYTES = sum(_MAX_MEMBER_BYTES.values())
# Programs compress to a fifth or a tenth; a member that expands much more is crafted to fill memory.
_MAX_EXPANSION, _SMALL_BYTES = 100, 1 << 20
_KEYS, _MAX_KEYS = re.compile(r"[\[./]"), 100  # first characters of the keys in an argument's path
# Programs and traces are separate members; the other fields apply only to this process.
_NOT_IN_MANIFEST = frozenset({"hlo_proto", "proto_without_limit", "trace", "file", "compiler_config"})
_MAKE_AGAIN = "make it again with `memprof run`"


class _DamagedError(Exception):
    """The file differs from the written one; the message says how."""


def write_capture(capture: Capture, path: Path, *, if_taken: IfTaken = IfTaken.REFUSE) -> Path:
    """Write a capture to a path atomically.

    The written file is read back and checked before it gets its name.

    Args:
        if_taken: what to do if the path exists.

    Returns:
        The written path.

    Raises:
        MemprofError: the file exists, the folder cannot be written to, or the written file cannot be read back.
    """
    parts = {_MANIFEST: _manifest(capture), **_content_of(capture)}

    def fill(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content in {**parts, _SUMS: _sums(parts)}.items():
                archive.writestr(name, content)
        file.flush()
        os.fsync(file.fileno())  # read back the content on the disk
        file.seek(0)
        _check_written(file.read(), capture, path)

    return write_whole(path, fill, what="the capture", if_taken=if_taken)


def is_same(one: Capture, other: Capture) -> bool:
    """Whether two captures have the same program and the same other fields.

    The compile times are ignored, as are the totals of the replay, which follow from the program.
    """
    return dataclasses.replace(one, timings=other.timings, replay=other.replay) == other


def without_source(capture: Capture) -> Capture:
    """Return the capture without the text of source lines, to share it without the code."""
    return dataclasses.replace(capture, source_lines={})


def read_capture(path: Path) -> Capture:
    """Read a capture file. Pool settings in this process's environment override the recorded ones.

    Raises:
        MemprofError: the file is missing, not a capture, damaged, or of another schema; or the environment has a pool
            setting that JAX rejects.
    """
    try:
        capture = _unpack(_content(path), path)
    except FileNotFoundError as error:
        raise MemprofError(f"there is no file {path}; `memprof run` writes captures (*.memprof)") from error
    except IsADirectoryError as error:
        raise MemprofError(f"{path} is a folder; give a capture (*.memprof)") from error
    except _DamagedError as error:
        raise MemprofError(f"{path} is not a capture, or is damaged: {error}; {_MAKE_AGAIN}") from error
    except OSError as error:
        raise MemprofError(f"{path} cannot be read: {error.strerror or error}") from error
    return dataclasses.replace(capture, file=str(path), pool=pool_settings(capture.target, capture.pool))


def encoded_without_program(capture: Capture) -> bytes:
    """Encode the capture of a step that is not compiled yet."""
    return json.dumps(_plain(capture), default=_plain).encode("ascii")


def decoded_without_program(data: bytes) -> Capture:
    """Decode the output of `encoded_without_program`.

    Raises:
        MemprofError: the content is not valid in a capture.
    """
    try:
        capture = as_record({**parse_json(data), "hlo_proto": b""}, Capture)
        _check_known(capture)
    except (UnfitError, _DamagedError) as error:
        raise MemprofError(f"the facts of this step do not fit into a capture ({error})") from error
    return capture


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise _DamagedError(f"it has more than {_MAX_FILE_BYTES:,} bytes, the maximum for a capture")
    return content


def _unpack(content: bytes, path: Path) -> Capture:
    _check_directory(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            manifest_bytes = _read_member(archive, members, _MANIFEST)
            manifest = _parse_manifest(manifest_bytes)
            _check_schema(manifest, path)
            names = {member.filename for member in members}
            programs = [_TRACE] if _TRACE in names else [_PROGRAM, *names & {_WITHOUT_LIMIT}]
            if sorted(member.filename for member in members) != sorted([_MANIFEST, *programs, _SUMS]):
                raise _DamagedError(f"it must contain only {_MANIFEST}, {_PROGRAM} or {_TRACE}, and {_SUMS}")
            parts = {_MANIFEST: manifest_bytes}
            parts |= {name: _read_member(archive, members, name) for name in programs}
            sums = _read_member(archive, members, _SUMS)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError) as error:
        # `zipfile` raises RuntimeError for encryption and for unknown features.
        raise _DamagedError(clean(str(error).partition("\n")[0])[:200]) from error
    if sums != _sums(parts):
        raise _DamagedError("its content does not match its digests")
    try:
        read = {
            "hlo_proto": parts.get(_PROGRAM, b""),
            "proto_without_limit": parts.get(_WITHOUT_LIMIT, b""),
            "trace": parse_json(parts[_TRACE]) if _TRACE in parts else None,
        }
        capture = as_record({**manifest, **read, "file": None}, Capture)
    except UnfitError as error:
        raise _DamagedError(f"its manifest does not fit schema {SCHEMA_VERSION} ({error})") from error
    _check_capture(capture)
    return capture


def _check_directory(content: bytes) -> None:
    """Check the directory size at the end of the zip before `zipfile` creates records from the directory."""
    # The last record, without a comment. A zip64 record may precede it, but no capture needs one.
    record = struct.Struct("<4s4H2IH")
    locator_bytes = 20
    tail = content[-record.size - locator_bytes :]
    if len(tail) < record.size:
        raise _DamagedError("it is too short")
    signature, *_, num_members, directory_bytes, _, comment_bytes = record.unpack(tail[-record.size :])
    if signature != b"PK\5\6" or comment_bytes or tail[:4] == b"PK\6\7" or num_members > 64 or directory_bytes > 8192:
        raise _DamagedError("the end of a capture is missing, so it may be truncated")


def _read_member(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], name: str) -> bytes:
    """Return the content of a member in the form that memprof writes."""
    found = [member for member in members if member.filename == name]
    if len(found) != 1:
        raise _DamagedError(f"it has {len(found)} members called {name}")
    (member,) = found
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
        raise _DamagedError(f"{name} is compressed in a way that memprof does not use")
    most_bytes = _MAX_MEMBER_BYTES[name]
    if member.file_size > _SMALL_BYTES:
        most_bytes = min(most_bytes, _MAX_EXPANSION * member.compress_size)
    if member.file_size > most_bytes:
        raise _DamagedError(f"{name} expands to {member.file_size:,} bytes, but the maximum is {most_bytes:,}")
    with archive.open(member) as opened:
        content = opened.read(most_bytes + 1)  # do not trust the size that the member states
    if len(content) != member.file_size:
        raise _DamagedError(f"{name} does not have the size that the file states")
    return content


def _parse_manifest(data: bytes) -> Any:
    try:
        return parse_json(data)
    except UnfitError as error:
        raise _DamagedError(f"its manifest cannot be read ({error})") from error


def _check_schema(manifest: Any, path: Path) -> None:
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    name, _, number = str(schema).partition("/")
    if name != SCHEMA_NAME or not (number.isascii() and number.isdecimal()):
        raise _DamagedError(f"its manifest says schema {quote(schema)}, not '{SCHEMA_NAME}/{SCHEMA_VERSION}'")
    if number == str(SCHEMA_VERSION):
        return
    if number == "1":
        raise MemprofError(
            f"{path} has schema {SCHEMA_NAME}/1, which has no digests to detect damage and is no longer read;"
            f" {_MAKE_AGAIN}"
        )
    raise MemprofError(
        f"{path} has schema {quote(schema)}, but this memprof reads {SCHEMA_NAME}/{SCHEMA_VERSION}: a newer memprof"
        " wrote it (`pip install --upgrade jax-memprof`), or it is damaged"
    )


def _check_capture(capture: Capture) -> None:
    """Check the rules that the types of the fields do not express."""
    if capture.trace is not None:
        fault = fault_of_trace(capture.trace)
        if fault:
            raise _DamagedError(f"in its trace, {fault}")
    elif (capture.replay is None and capture.engine is None) or (
        capture.proto_without_limit and capture.replay_without_limit is None
    ):
        raise _DamagedError("its manifest has no totals of the replay")
    if capture.engine is not None:
        fault = fault_of_engine(capture.engine)
        if fault:
            raise _DamagedError(f"in its engine, {fault}")
    _check_known(capture)


def _check_known(capture: Capture) -> None:
    """Check the same for the fields that are known before the compile."""
    numbers = [leaf.parameter_number for leaf in capture.arguments if leaf.parameter_number is not None]
    if len(set(numbers)) != len(numbers):
        raise _DamagedError("its manifest gives two arguments the same number")
    if max(capture.flops, capture.recomputed_flops, *capture.flops_by_scope.values()) > MAX_OPERATIONS:
        raise _DamagedError("its manifest has an impossible number of operations")
    for leaf in capture.arguments:
        if not leaf.has_sane_size:
            raise _DamagedError(f"its manifest has an argument of an impossible shape, {quote(leaf.path)}")
        if len(_KEYS.findall(leaf.path)) > _MAX_KEYS:
            raise _DamagedError(f"its manifest has an argument that is nested too deeply, {quote(leaf.path)}")


def _content_of(capture: Capture) -> dict[str, bytes]:
    """Return the members for the compiled programs or the trace."""
    if capture.trace is not None:
        return {_TRACE: msgspec.json.encode(capture.trace)}
    parts = {_PROGRAM: capture.hlo_proto}
    if capture.proto_without_limit:
        parts[_WITHOUT_LIMIT] = capture.proto_without_limit
    return parts


def _manifest(capture: Capture) -> bytes:
    if capture.trace is not None:
        return _as_manifest(_plain(capture))
    platform, unlimited = capture.target.platform, capture.replay_without_limit
    replay = capture.replay
    if replay is None and capture.engine is None:
        replay = replay_totals(capture.hlo_proto, platform)
    if capture.proto_without_limit:
        unlimited = unlimited or replay_totals(capture.proto_without_limit, platform)
    return _as_manifest(_plain(dataclasses.replace(capture, replay=replay, replay_without_limit=unlimited)))


def _as_manifest(fields: dict[str, Any]) -> bytes:
    return json.dumps({"schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION}", **fields}, indent=1, default=_plain).encode("ascii")


def _plain(value: Any) -> dict[str, Any]:
    """Convert values that JSON lacks to a `dict`: a record to its fields, or another kind of mapping."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value) if field.name not in _NOT_IN_MANIFEST)
        return {name: getattr(value, name) for name in names}
    return dict(value)


def _sums(parts: dict[str, bytes]) -> bytes:
    """Return the digests of members in the format of `sha256sum --check`."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in parts.items()).encode()


def _check_written(content: bytes, capture: Capture, path: Path) -> None:
    """Read the written content back, before the file gets its name.

    Raises:
        MemprofError: the content differs from the capture or cannot be read.
    """
    try:
        found = _unpack(content, path)
    except _DamagedError as error:
        raise MemprofError(f"the capture cannot be written to {path}: {error}") from error
    if _content_of(found) != _content_of(capture):
        raise MemprofError(f"the capture cannot be written to {path}: reading it back gives another content")
