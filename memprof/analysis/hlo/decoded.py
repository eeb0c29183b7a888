"""Decode and check a program with its buffer assignment once, also if a report follows its compile.

A compile decodes its plan to check it. The report, which usually comes next, reuses the decoded program. A program is
kept until it is used, but only the last few: as many as a comparison has rows that compile at the same time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memprof.analysis.hlo.buffer_table import BufferTable, decode_buffer_table
from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_decoding import decode_program
from memprof.analysis.records.device_family import family_of

# Python 3.12 freezes 375 objects before it runs any code; `gc.freeze` freezes every object, tens of thousands with JAX.
_MAX_FROZEN_BY_PYTHON = 1000
_MAX_KEPT = 4
_KEPT: dict[int, tuple[bytes, Program, BufferTable]] = {}  # by the identity of the bytes, the oldest first
_KEEPING = threading.Lock()


def decode(proto: Any, platform: str) -> tuple[Program, BufferTable]:
    """Decode an `xla.HloProto`.

    Args:
        platform: of the target device.

    Raises:
        MemprofError, InternalError: see `decode_program` and `decode_buffer_table`.
    """
    with no_garbage_collection():
        program = decode_program(proto)
        return program, decode_buffer_table(proto, program, family_of(platform))


def keep_decoded(hlo_proto: bytes, program: Program, table: BufferTable) -> None:
    """Keep the decoded form of serialized bytes for the next caller of `take_decoded`."""
    with _KEEPING:
        _KEPT[id(hlo_proto)] = hlo_proto, program, table
        while len(_KEPT) > _MAX_KEPT:
            del _KEPT[next(iter(_KEPT))]


def take_decoded(hlo_proto: bytes, platform: str) -> tuple[Program, BufferTable]:
    """Return the kept program of the same bytes, or else decode them.

    Raises:
        MemprofError, InternalError: see `decode`; also if the bytes cannot be parsed.
    """
    with _KEEPING:
        kept = _KEPT.pop(id(hlo_proto), None)
    if kept is not None:  # it holds the bytes, so no others have their identity
        return kept[1:]
    return decode(parse_proto(hlo_proto), platform)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Suspend the search for reference cycles.

    Python's collector visits all objects again whenever their number has grown by a fraction. Decoding and analysis
    make millions of objects that live to the end, and almost no cycles. At the end, freezing and unfreezing marks these
    objects as old, so the collector does not visit them then either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if (
                gc.get_freeze_count() <= _MAX_FROZEN_BY_PYTHON
            ):  # otherwise the caller has frozen objects, which stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
