"""Conservation: what the replayed buffer assignment says must equal what the compiler says, byte for byte.

A difference is a defect of memprof, or an XLA that it does not understand yet. Then no report is better than a wrong
one, so it is an error.
"""

from __future__ import annotations

from memprof.analysis.buffer_table import BufferTable
from memprof.analysis.capture import Capture
from memprof.analysis.holdings import Holdings
from memprof.errors import InternalError


def check_totals(capture: Capture, table: BufferTable, holdings: Holdings) -> None:
    """Compare the replay with the compiler's own totals.

    Raises:
        InternalError: they differ; the message names both numbers.
    """
    allocations = table.device_allocations
    arguments = sum(a.size_bytes for a in allocations if a.parameter_number is not None)
    _equal("the bytes of the arguments", arguments, capture.compiler.argument_bytes)
    outputs = sum(a.size_bytes for a in allocations if a.is_live_out and a.parameter_number is None)
    _equal("the bytes of the outputs", outputs, capture.compiler.output_bytes - capture.compiler.alias_bytes)
    temps = sum(a.size_bytes for a in allocations if a.is_temp)
    _equal("the bytes of the temp block", temps, capture.compiler.temp_bytes)
    if capture.compiler.peak_memory_bytes is not None:
        _equal("the live peak", holdings.live_peak_bytes, capture.compiler.peak_memory_bytes)
    held = sum(holding.size_bytes for holding in holdings.at_peak)
    _equal("the sum of the buffers at the peak", held, holdings.live_peak_bytes)


def _equal(what: str, replayed_bytes: int, compiler_bytes: int) -> None:
    if replayed_bytes != compiler_bytes:
        raise InternalError(
            f"{what} in the buffer assignment ({replayed_bytes:,}) differs from the compiler's total"
            f" ({compiler_bytes:,}); the capture is damaged, or this version of XLA is not understood yet"
        )
