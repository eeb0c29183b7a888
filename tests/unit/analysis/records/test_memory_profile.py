"""The sums of a device memory profile."""

from __future__ import annotations

from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.memory_profile import Alive, Kind, MemoryProfile

OUTER = StackFrame(file="/home/me/train.py", function="main", line=3, is_own=True)
LIBRARY = StackFrame(file="flax/linen/linear.py", function="Dense", line=7, is_own=False)
INNER = StackFrame(file="jax/numpy.py", function="zeros", line=9, is_own=False)


def _alive(kind: Kind, device: str, count: int, size_bytes: int, *stack: StackFrame) -> Alive:
    return Alive(kind=kind, device=device, count=count, size_bytes=size_bytes, stack=stack)


PROFILE = MemoryProfile(
    name="memory.prof",
    alive=(
        _alive(Kind.BUFFER, "cuda:0", 3, 300),
        _alive(Kind.BUFFER, "cuda:1", 1, 500),
        _alive(Kind.EXECUTABLE, "", 2, 7000),
        _alive(Kind.BUFFER, "cuda:0", 2, 20),
    ),
)


def test_sizes_and_counts_are_of_one_kind_on_one_device_or_on_all() -> None:
    assert [PROFILE.size_of(Kind.BUFFER, device) for device in (None, "cuda:0", "cuda:1", "cuda:2")] == [
        820,
        320,
        500,
        0,
    ]
    assert [PROFILE.count_of(Kind.BUFFER, device) for device in (None, "cuda:0", "cuda:1")] == [6, 5, 1]
    assert (PROFILE.size_of(Kind.EXECUTABLE), PROFILE.count_of(Kind.EXECUTABLE)) == (7000, 2)
    assert PROFILE.of(Kind.BUFFER, "cuda:0") == (PROFILE.alive[0], PROFILE.alive[3])


def test_the_device_that_holds_most_comes_first() -> None:
    assert PROFILE.devices == ("cuda:1", "cuda:0")  # an executable has no device
    equal = MemoryProfile(name="", alive=tuple(_alive(Kind.BUFFER, device, 1, 8) for device in ("b", "a")))
    assert equal.devices == ("a", "b")


def test_one_allocation_has_its_part_of_the_total() -> None:
    assert [each.each_bytes for each in PROFILE.alive] == [100, 500, 3500, 10]
    assert _alive(Kind.BUFFER, "cuda:0", 0, 300).each_bytes == 0


def test_own_calls_are_the_users_or_else_the_innermost() -> None:
    assert _alive(Kind.BUFFER, "", 1, 1, OUTER, LIBRARY, INNER).own_calls == (OUTER,)
    assert _alive(Kind.BUFFER, "", 1, 1, LIBRARY, INNER).own_calls == (INNER,)
    assert _alive(Kind.BUFFER, "", 1, 1).own_calls == ()
