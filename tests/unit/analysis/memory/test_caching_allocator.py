"""The model of PyTorch's caching allocator, against the rules in c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import pytest

from memprof.analysis.memory.caching_allocator import (
    MIB,
    AllocatorSettings,
    CachingAllocator,
    OutOfMemoryError,
    rounded_size,
    segment_size,
)


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (4 * MIB, 4 * MIB)])
def test_sizes_are_rounded_up_to_512_bytes(size: int, rounded: int) -> None:
    assert rounded_size(size) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),  # the largest request of the small pool
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # from here on a multiple of 2 MiB
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_the_size_of_a_new_segment(size: int, segment: int) -> None:
    assert segment_size(size) == segment


def test_small_tensors_share_a_segment_of_2_mib() -> None:
    allocator = CachingAllocator()
    for number in range(4):  # 4 x 512 KiB = 2 MiB
        allocator.malloc(number, MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.malloc("one more", 1)
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (4 * MIB, 2 * MIB + 512)
    assert allocator.requested_bytes == 2 * MIB + 1


def test_a_large_block_keeps_a_rest_of_up_to_1_mib() -> None:
    allocator = CachingAllocator()
    allocator.malloc("a", 9 * MIB)  # of a segment of 20 MiB: 11 MiB are left
    allocator.malloc("b", 10 * MIB)  # the rest of 1 MiB is not split off
    assert (allocator.block_bytes("b"), allocator.allocated_bytes) == (11 * MIB, 20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    allocator.malloc("large", 40 * MIB)
    allocator.malloc("small", 30 * MIB)
    allocator.free("large")
    allocator.free("small")
    allocator.malloc("new", 28 * MIB)
    allocator.malloc("newer", 40 * MIB)
    assert allocator.reserved_bytes == 70 * MIB


def test_free_neighbours_merge() -> None:
    allocator = CachingAllocator()
    for name in "abc":  # 3 x 6 MiB of one segment of 20 MiB
        allocator.malloc(name, 6 * MIB)
    allocator.free("a")
    allocator.free("c")
    allocator.malloc("d", 8 * MIB)  # c and the rest of 2 MiB behind it
    assert allocator.reserved_bytes == 20 * MIB
    allocator.malloc("e", 7 * MIB)  # a has 6 MiB: a second segment
    assert allocator.reserved_bytes == 40 * MIB


def test_blocks_in_different_segments_do_not_merge_but_pages_of_an_expandable_one_do() -> None:
    for expandable, reserved in ((False, 20 + 20 + 40), (True, 40)):
        allocator = CachingAllocator(AllocatorSettings(expandable_segments=expandable))
        allocator.malloc("a", 20 * MIB)
        allocator.malloc("b", 20 * MIB)
        allocator.free("a")
        allocator.free("b")
        allocator.malloc("c", 40 * MIB)
        assert allocator.reserved_bytes == reserved * MIB


def test_an_expandable_segment_grows_behind_what_is_free_at_its_end() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    allocator.malloc("a", 30 * MIB)  # two pages of 20 MiB, of which 10 MiB are free
    allocator.malloc("b", 25 * MIB)  # those 10 MiB and one page more
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (60 * MIB, 55 * MIB)


def test_a_block_of_max_split_size_is_not_split_and_serves_no_smaller_request() -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=100 * MIB))
    allocator.malloc("a", 200 * MIB)
    allocator.free("a")
    allocator.malloc("b", 50 * MIB)  # not from the block of 200 MiB
    assert allocator.reserved_bytes == 250 * MIB
    allocator.malloc("c", 190 * MIB)  # at most 20 MiB smaller: the block of 200 MiB, whole
    assert allocator.block_bytes("c") == 200 * MIB


def test_at_the_limit_cached_segments_are_released_before_it_is_out_of_memory() -> None:
    allocator = CachingAllocator(AllocatorSettings(limit_bytes=100 * MIB))
    allocator.malloc("a", 60 * MIB)
    allocator.free("a")
    allocator.malloc("b", 80 * MIB)  # a's 60 MiB are released
    assert (allocator.reserved_bytes, allocator.num_retries, allocator.peak_reserved_bytes) == (80 * MIB, 1, 80 * MIB)
    with pytest.raises(OutOfMemoryError, match="a tensor of 31,457,280 bytes does not fit"):
        allocator.malloc("c", 30 * MIB)


def test_garbage_collection_releases_what_was_unused_longest() -> None:
    allocator = CachingAllocator(AllocatorSettings(limit_bytes=100 * MIB, garbage_collection_threshold=0.5))
    allocator.malloc("old", 30 * MIB)
    allocator.free("old")
    allocator.malloc("a", 32 * MIB)  # below the threshold of 50 MiB until now
    allocator.malloc("b", 34 * MIB)  # 62 MiB are reserved: the 30 MiB that are unused are released
    assert allocator.reserved_bytes == 66 * MIB
    assert allocator.num_retries == 0


def test_an_empty_storage_takes_no_memory() -> None:
    allocator = CachingAllocator()
    allocator.malloc("empty", 0)
    allocator.free("empty")
    assert (allocator.reserved_bytes, allocator.block_bytes("empty")) == (0, 0)
