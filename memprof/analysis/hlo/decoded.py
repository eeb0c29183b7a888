"""Decode a program with its buffer assignment.

A compile decodes its plan to check it, and returns a `FreshCapture`: the capture, and the decoded program for the
report that usually comes next. A capture from a file has only the bytes, which `analyze` decodes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from memprof.analysis.hlo.buffer_table import BufferTable, decode_buffer_table
from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_decoding import decode_program
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.device_family import family_of

# Python 3.12 freezes 375 objects before it runs any code; `gc.freeze` freezes every object, tens of thousands with JAX.
_MAX_FROZEN_BY_PYTHON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A program with its buffer assignment.

    Attributes:
        without_limit: the same program, compiled without a memory limit; None if it was not compiled.
    """

    program: Program
    table: BufferTable
    without_limit: Decoded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshCapture:
    """A capture that was just made, and its program.

    Attributes:
        decoded: takes far more memory than the bytes in the capture, so it is passed on and not kept; None for a trace
            or an engine.
    """

    capture: Capture
    decoded: Decoded | None = field(default=None, repr=False)


def decode(proto: Any, platform: str) -> Decoded:
    """Decode an `xla.HloProto`.

    Args:
        platform: of the target device.

    Raises:
        MemprofError, InternalError: see `decode_program` and `decode_buffer_table`.
    """
    with no_garbage_collection():
        program = decode_program(proto)
        return Decoded(program=program, table=decode_buffer_table(proto, program, family_of(platform)))


def decode_capture(capture: Capture) -> Decoded:
    """Decode the programs of a capture.

    Raises:
        MemprofError, InternalError: see `decode`; also if the bytes cannot be parsed.
    """
    platform, other = capture.target.platform, None
    if capture.proto_without_limit:
        other = decode(parse_proto(capture.proto_without_limit), platform)
    return replace(decode(parse_proto(capture.hlo_proto), platform), without_limit=other)


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
