"""Laws of the model of PyTorch's caching allocator, for any sequence of tensors that come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memprof.analysis.memory.caching_allocator import (
    LARGE_SEGMENT_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
    CachingAllocator,
    rounded_size,
)

SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 3 << 20), st.integers(1, 64 << 20))
# A positive number is a new tensor of that size, a negative one frees one of the live tensors.
SCRIPTS = st.lists(st.one_of(SIZES, st.integers(-50, -1)), max_size=60)
SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.none() | st.sampled_from([21 << 20, 30 << 20]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.3]),
    limit_bytes=st.just(8 << 30),
)


def _play(script: list[int], settings: AllocatorSettings) -> tuple[CachingAllocator, dict[int, int]]:
    allocator, live = CachingAllocator(settings), dict[int, int]()
    for number, each in enumerate(script):
        if each > 0:
            allocator.malloc(number, each)
            live[number] = each
        elif live:
            name = list(live)[-each % len(live)]
            allocator.free(name)
            del live[name]
        assert allocator.requested_bytes == sum(live.values())
        assert allocator.allocated_bytes == sum(map(allocator.block_bytes, live))
        assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes
    return allocator, live


@given(SCRIPTS, SETTINGS)
def test_allocated_is_the_sum_of_the_live_blocks_and_lies_within_reserved(
    script: list[int], settings: AllocatorSettings
) -> None:
    allocator, live = _play(script, settings)
    for name, size in live.items():
        assert allocator.block_bytes(name) >= rounded_size(size)
        allocator.free(name)
    assert allocator.requested_bytes == allocator.allocated_bytes == 0


@given(SCRIPTS, SETTINGS)
def test_an_empty_allocator_gives_everything_back(script: list[int], settings: AllocatorSettings) -> None:
    allocator, live = _play(script, settings)
    for name in live:
        allocator.free(name)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


@given(SCRIPTS)
def test_without_a_limit_the_same_tensors_again_reserve_no_more(script: list[int]) -> None:
    allocator, live = _play([each for each in script if each > 0], AllocatorSettings())
    reserved = allocator.reserved_bytes
    for name in live:
        allocator.free(name)
    for name, size in sorted(live.items(), key=lambda item: -item[1]):  # the largest first: none takes another's place
        allocator.malloc(name, size)
    assert allocator.reserved_bytes == reserved


@given(SCRIPTS)
def test_expandable_segments_reserve_whole_pages(script: list[int]) -> None:
    allocator, live = _play(script, AllocatorSettings(expandable_segments=True))
    assert allocator.reserved_bytes % SMALL_SEGMENT_BYTES == 0
    small = sum(rounded_size(size) for size in live.values() if size <= 1 << 20)
    assert LARGE_SEGMENT_BYTES % SMALL_SEGMENT_BYTES == 0
    assert small <= allocator.reserved_bytes
