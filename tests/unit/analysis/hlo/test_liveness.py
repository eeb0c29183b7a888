"""Replaying a heap trace."""

from __future__ import annotations

import pytest

from memprof.analysis.hlo.buffer_table import BufferTable, Event, EventKind, HeapTrace, LogicalBuffer
from memprof.analysis.hlo.liveness import Lifetime, Liveness, MemorySpan, replay
from memprof.errors import InternalError

# Sizes are powers of ten, so that a sum shows which buffers are in it.
_SIZES = {"a": 1, "b": 10, "c": 100, "d": 1000}
_IDS = {name: number for number, name in enumerate(_SIZES)}


def _replay(*lines: str) -> Liveness:
    """Replay events such as `alloc a`, `share b a`, `free a`."""
    events = []
    for line in lines:
        verb, buffer, *canonical = line.split()
        kind = {"alloc": EventKind.ALLOC, "share": EventKind.SHARE_WITH, "free": EventKind.FREE}[verb]
        events.append(Event(kind, _IDS[buffer], _IDS[canonical[0]] if canonical else 0, buffer))
    buffers = {
        number: LogicalBuffer(id=number, size_bytes=_SIZES[name], instruction=0, shape_index=(), allocation=0, offset=0)
        for name, number in _IDS.items()
    }
    table = BufferTable(logical_buffers=buffers, allocations=(), traces=())
    return replay(HeapTrace(allocation=0, events=tuple(events)), table)


def _spans(liveness: Liveness) -> list[tuple[int, int, int]]:
    return sorted((span.start, span.end, span.size_bytes) for span in liveness.spans)


def test_memory_is_live_from_its_alloc_up_to_its_free() -> None:
    liveness = _replay("alloc a", "alloc b", "free a", "alloc c", "free b", "free c")
    assert liveness.lifetimes == (
        Lifetime(buffer_id=0, canonical_id=0, start=0, end=2),
        Lifetime(buffer_id=1, canonical_id=1, start=1, end=4),
        Lifetime(buffer_id=2, canonical_id=2, start=3, end=5),
    )
    assert liveness.spans == (
        MemorySpan(canonical_id=0, size_bytes=1, start=0, end=2),
        MemorySpan(canonical_id=1, size_bytes=10, start=1, end=4),
        MemorySpan(canonical_id=2, size_bytes=100, start=3, end=5),
    )
    # b and c are live together; a died before c came.
    assert (liveness.peak_bytes, liveness.peak_event) == (110, 3)


def test_shared_memory_counts_once_and_dies_with_its_last_value() -> None:
    liveness = _replay("alloc a", "share b a", "free a", "alloc c", "free b", "free c")
    # b uses a's one byte, not ten of its own, and keeps it alive while c's 100 come.
    assert _spans(liveness) == [(0, 4, 1), (3, 5, 100)]
    assert liveness.lifetimes[:2] == (
        Lifetime(buffer_id=0, canonical_id=0, start=0, end=2),
        Lifetime(buffer_id=1, canonical_id=0, start=1, end=4),
    )
    # A replay that ignores SHARE_WITH would let the byte of a die at its FREE, and report 100.
    assert (liveness.peak_bytes, liveness.peak_event) == (101, 3)


def test_sharing_after_the_free_of_the_memory_takes_it_again() -> None:
    liveness = _replay("alloc c", "free c", "alloc d", "share a c", "free a", "free d")
    assert _spans(liveness) == [(0, 1, 100), (2, 5, 1000), (3, 4, 100)]
    assert (liveness.peak_bytes, liveness.peak_event) == (1100, 3)


def test_sharing_with_a_buffer_that_shares_uses_the_memory_of_the_first() -> None:
    liveness = _replay("alloc c", "share a c", "free c", "share b a", "free a", "free b")
    assert _spans(liveness) == [(0, 5, 100)]
    assert [lifetime.canonical_id for lifetime in liveness.lifetimes] == [2, 2, 2]


def test_what_is_never_freed_lives_to_the_end() -> None:
    liveness = _replay("alloc a", "share b a", "alloc c", "free a")
    assert _spans(liveness) == [(0, 4, 1), (2, 4, 100)]
    assert sorted((lifetime.buffer_id, lifetime.start, lifetime.end) for lifetime in liveness.lifetimes) == [
        (0, 0, 3),
        (1, 1, 4),
        (2, 2, 4),
    ]


def test_the_peak_is_where_it_is_first_reached() -> None:
    liveness = _replay("alloc c", "free c", "alloc c", "free c")
    assert (liveness.peak_bytes, liveness.peak_event) == (100, 0)
    assert _spans(liveness) == [(0, 1, 100), (2, 3, 100)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["alloc a", "free b"], "buffer 1 before"),
        (["alloc a", "free a", "free a"], "frees buffer 0, which is not live"),
        (["alloc a", "share b c"], "buffer 2 before"),
        (["alloc a", "share b a", "free b", "free b"], "frees buffer 1, which is not live"),
        (["alloc a", "alloc a"], "buffer 0, which is live"),
        (["alloc a", "share b a", "share b a"], "buffer 1, which is live"),
    ],
)
def test_a_trace_that_contradicts_itself_is_an_error(lines: list[str], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        _replay(*lines)
