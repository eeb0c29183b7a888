"""A program with its buffer assignment, decoded and checked: once, also where a report follows on its compile.

Where a step is compiled its plan is decoded to be checked; the report, which mostly comes next, takes what was decoded
then. Of one program it is kept, and only until it is taken.
"""

from __future__ import annotations

import gc
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
_kept: tuple[bytes, Program, BufferTable] | None = None


def decode(proto: Any, platform: str) -> tuple[Program, BufferTable]:
    """Decode an `xla.HloProto`.

    Args:
        platform: of the device that it is for.

    Raises:
        MemprofError, InternalError: see `decode_program` and `decode_buffer_table`.
    """
    with no_garbage_collection():
        program = decode_program(proto)
        return program, decode_buffer_table(proto, program, family_of(platform))


def keep_decoded(hlo_proto: bytes, program: Program, table: BufferTable) -> None:
    """Keep what was decoded of serialized bytes for whoever wants it next."""
    global _kept
    _kept = hlo_proto, program, table  # assigned as a whole, so that threads need no lock


def take_decoded(hlo_proto: bytes, platform: str) -> tuple[Program, BufferTable]:
    """What was kept of the same bytes, else what they are decoded to now.

    Raises:
        MemprofError, InternalError: see `decode`; or they cannot be parsed.
    """
    global _kept
    kept = _kept
    if kept is not None and kept[0] is hlo_proto:
        _kept = None
        return kept[1:]
    return decode(parse_proto(hlo_proto), platform)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Put off looking for reference cycles.

    Python's collector goes through all objects again whenever their number has grown by a share; decoding and analysis
    make millions that live until its end and next to no cycles. Nor does it go through them at the end: frozen and
    released, they count as old.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() <= _MAX_FROZEN_BY_PYTHON:  # else the caller has frozen objects: they stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
