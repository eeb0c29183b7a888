"""Reader of gzipped pprof files from `jax.profiler.save_device_memory_profile("memory.prof")`.

Each sample has a number of allocations, their bytes, the labels `kind` (`buffer`, `executable`) and `device`, and the
Python stack that allocated them. JAX records neither shape nor dtype.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from memprof.analysis.attribution.sources import call_of
from memprof.analysis.memory.pprof import Profile
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.memory_profile import Alive, Kind, MemoryProfile
from memprof.errors import MemprofError
from memprof.untrusted import MAX_BYTES, clean, open_regular

_GZIP = b"\x1f\x8b"
_MAX_BYTES = 1 << 28
_TYPES = (("allocations", "count"), ("space", "bytes"))


def memory_profile(path: Path) -> MemoryProfile | None:
    """Return the memory profile in a file, or None if it is another kind of file.

    Raises:
        MemprofError: the file is a damaged memory profile.
    """
    if not os.path.isfile(path):
        return None
    found = _parsed(path)
    if found is None:
        return None
    try:
        return MemoryProfile(name=path.name, alive=tuple(_alive(found)))
    except (IndexError, KeyError, ValueError) as error:
        raise MemprofError(f"{path} is damaged: its samples refer to missing entries; write it again") from error


def _parsed(path: Path) -> Any:
    with open_regular(path) as opened:
        if opened.read(len(_GZIP)) != _GZIP:
            return None
        opened.seek(0)
        try:
            content = gzip.GzipFile(fileobj=opened).read(_MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            if path.suffix != ".prof":
                return None
            raise MemprofError(f"{path} cannot be unpacked ({error}): write it again") from error
    if len(content) > _MAX_BYTES:
        return None
    try:
        profile = Profile.FromString(content)
    except DecodeError:
        return None
    texts = profile.string_table
    if not texts or any(
        not 0 <= each < len(texts) for found in profile.sample_type for each in (found.type, found.unit)
    ):
        return None
    types = tuple((texts[each.type], texts[each.unit]) for each in profile.sample_type)
    return profile if types == _TYPES else None


def _alive(profile: Any) -> list[Alive]:
    texts = [clean(text) for text in profile.string_table]
    functions = {each.id: (texts[each.name], texts[each.filename]) for each in profile.function}
    calls: dict[int, StackFrame] = {}
    for location in profile.location:
        line = location.line[0]
        name, file = functions[line.function_id]
        calls[location.id] = call_of(file, name, line.line)
    found = []
    for sample in profile.sample:
        labels = {texts[each.key]: texts[each.str] for each in sample.label}
        count, size_bytes = sample.value
        if not (0 < count <= MAX_BYTES and 0 <= size_bytes <= MAX_BYTES):
            raise ValueError(count)
        found.append(
            Alive(
                kind=Kind(labels["kind"]),
                device=labels.get("device", ""),
                count=count,
                size_bytes=size_bytes,
                stack=tuple(calls[each] for each in reversed(sample.location_id)),
            )
        )
    return found
