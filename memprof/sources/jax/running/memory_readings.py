"""Memory readings of a running step: XLA's allocator, and this process's resident memory."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from memprof.analysis.records.measurement import PoolMemory, PoolReading

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def read_pool(device: Any) -> PoolReading | None:
    """Read XLA's allocator, or return None on a device without statistics, such as the CPU."""
    stats = device.memory_stats()
    if not stats or "peak_bytes_in_use" not in stats:
        return None
    return PoolReading(current_bytes=stats["bytes_in_use"], peak_bytes=stats["peak_bytes_in_use"])


def pool_memory(
    device: Any, before: PoolReading | None, first: PoolReading | None, last: PoolReading | None
) -> PoolMemory | None:
    """Combine the readings of a run, or return None if any is missing."""
    if before is None or first is None or last is None:
        return None
    stats = device.memory_stats()
    return PoolMemory(
        before_steps=before,
        after_first_step=first,
        after_all_steps=last,
        pool_bytes=stats.get("pool_bytes"),
        limit_bytes=stats.get("bytes_limit"),
    )


def start_resident_peak() -> int | None:
    """Reset the peak of this process's resident memory, and return its current bytes (None if not on Linux).

    First return the memory that the compiler freed to the system; otherwise the step could reuse it without raising the
    peak.
    """
    if not _STATUS.exists():
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")  # reset the peak to the current resident memory
    except OSError:
        return None
    return _status_bytes("VmRSS")


def read_resident() -> int:
    """Return this process's current resident memory in bytes."""
    return _status_bytes("VmRSS")


def resident_peak() -> int:
    """Return the peak resident memory in bytes since `start_resident_peak`."""
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert match, field
    return int(match.group(1)) * 1024
