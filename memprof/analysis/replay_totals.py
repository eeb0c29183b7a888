"""What the replay of a program's heap traces comes to, to be kept with it.

On a GPU the compiler's own totals say whether a program and its heap traces are whole. On a CPU its peak leaves the
temporaries out, so nothing would tell a trace that is gone or altered. So the totals of the replay are taken where the
capture is made and written into it, and every analysis compares its own with them.
"""

from __future__ import annotations

from memprof.analysis.buffer_table import BufferTable, decode_buffer_table
from memprof.analysis.capture import ReplayTotals
from memprof.analysis.hlo_proto import parse_proto
from memprof.analysis.liveness import replay
from memprof.analysis.program import decode_program


def replay_totals(hlo_proto: bytes) -> ReplayTotals:
    """The totals of a serialized program.

    Raises:
        MemprofError: it cannot be read.
        InternalError: it does not hold together.
    """
    proto = parse_proto(hlo_proto)
    return totals_of(decode_buffer_table(proto, decode_program(proto)))


def totals_of(table: BufferTable) -> ReplayTotals:
    """The totals of a buffer assignment: of all its traces, also of those in other memory than the device's.

    Raises:
        InternalError: a trace cannot be replayed.
    """
    traces = [replay(trace, table) for trace in table.traces]
    return ReplayTotals(
        footprint_bytes=sum(allocation.size_bytes for allocation in table.device_allocations),
        peak_bytes=sum(liveness.peak_bytes for liveness in traces),
        num_events=sum(len(trace.events) for trace in table.traces),
        byte_events=sum(span.size_bytes * (span.end - span.start) for liveness in traces for span in liveness.spans),
    )
