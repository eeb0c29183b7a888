"""The model of PyTorch's caching allocator, against the rules in c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import random
from itertools import pairwise

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


def test_more_than_1_mib_of_rest_is_split_off_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.malloc("a", 9 * MIB)
    allocator.malloc("b", 10 * MIB - 512)  # of the 11 MiB that are left, 1 MiB and 512 bytes stay free
    assert allocator.block_bytes("b") == 10 * MIB - 512


def test_a_small_block_is_split_down_to_512_bytes() -> None:
    allocator = CachingAllocator()
    first = allocator.malloc("first", 1024)
    allocator.malloc("between", 512)
    allocator.free("first")
    assert allocator.malloc("a", 512) == first
    assert allocator.malloc("b", 512) == first + 512
    assert (allocator.block_bytes("a"), allocator.block_bytes("b"), allocator.allocated_bytes) == (512, 512, 1536)
    assert allocator.reserved_bytes == 2 * MIB


def test_only_requests_above_1_mib_use_the_large_pool() -> None:
    allocator = CachingAllocator()
    allocator.malloc("small", MIB)
    allocator.malloc("large", MIB + 1)
    assert allocator.reserved_bytes == (2 + 20) * MIB


@pytest.mark.parametrize(
    ("cached_mib", "request_mib", "reserved_mib", "block_mib"),
    [
        (98, 50, 98, 50),  # below the size that is not split
        (100, 50, 150, 50),  # of that size: it serves no smaller request
        (118, 100, 118, 118),  # 18 MiB larger than the request: it serves it whole
        (120, 100, 220, 100),  # 20 MiB larger: it does not
    ],
)
def test_the_limits_of_max_split_size(cached_mib: int, request_mib: int, reserved_mib: int, block_mib: int) -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=100 * MIB))
    allocator.malloc("cached", cached_mib * MIB)
    allocator.free("cached")
    allocator.malloc("new", request_mib * MIB)
    assert (allocator.reserved_bytes, allocator.block_bytes("new")) == (reserved_mib * MIB, block_mib * MIB)


@pytest.mark.parametrize(
    ("limit_mib", "cached_mib", "request_bytes", "reserved_mib", "num_retries"),
    [
        (100, (46, 50), 24 * MIB, 74, 0),  # the smallest that the request fits in, which is 22 MiB larger
        (30, (30,), 10 * MIB, 10, 0),  # one of at least 20 MiB, though 10 are requested
        (100, (24, 30, 30), 60 * MIB, 84, 0),  # the two largest: 60 MiB are enough
        (60, (20, 40), 60 * MIB, 60, 0),  # both are at least 20 MiB
        (60, (18, 40), 50 * MIB, 50, 1),  # 18 MiB may be split: only the retry releases it
        (31, (30,), 1024, 2, 1),  # the small pool has none: only the retry releases the large one
    ],
)
def test_segments_that_are_not_split_are_released_before_all_others(
    limit_mib: int, cached_mib: tuple[int, ...], request_bytes: int, reserved_mib: int, num_retries: int
) -> None:
    settings = AllocatorSettings(max_split_size_bytes=20 * MIB, limit_bytes=limit_mib * MIB)
    allocator = CachingAllocator(settings)
    for number, size in enumerate(cached_mib):
        allocator.malloc(number, size * MIB)
    for number in range(len(cached_mib)):
        allocator.free(number)
    allocator.malloc("new", request_bytes)
    assert (allocator.reserved_bytes, allocator.num_retries) == (reserved_mib * MIB, num_retries)


@pytest.mark.parametrize("expandable", [False, True])
def test_the_limit_itself_can_be_reserved(expandable: bool) -> None:
    settings = AllocatorSettings(limit_bytes=80 * MIB, expandable_segments=expandable)
    allocator = CachingAllocator(settings)
    allocator.malloc("all", 80 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == (80 * MIB, 0)
    with pytest.raises(OutOfMemoryError, match=r"a tensor of 512 bytes does not fit: 83,886,080 of 83,886,080 bytes"):
        allocator.malloc("more", 1)
    assert (allocator.requested_bytes, allocator.peak_reserved_bytes) == (80 * MIB, 80 * MIB)


@pytest.mark.parametrize(
    ("limit_mib", "expandable", "reserved_mib"),
    [
        (200, False, 40 + 60),  # 40 MiB are reserved, the threshold is 50
        (160, False, 40 + 60),  # 40 of 40
        (159, False, 60),  # above the threshold: the unused segment of 40 MiB is released
        (159, True, 60),  # an expandable segment grows by a page instead
    ],
)
def test_garbage_is_collected_above_the_threshold(limit_mib: int, expandable: bool, reserved_mib: int) -> None:
    settings = AllocatorSettings(
        limit_bytes=limit_mib * MIB, garbage_collection_threshold=0.25, expandable_segments=expandable
    )
    allocator = CachingAllocator(settings)
    allocator.malloc("unused", 40 * MIB)
    allocator.free("unused")
    allocator.malloc("new", 60 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == (reserved_mib * MIB, 0)


def test_garbage_collection_ends_when_enough_is_released() -> None:
    settings = AllocatorSettings(limit_bytes=1000 * MIB, garbage_collection_threshold=0.1)
    allocator = CachingAllocator(settings)
    allocator.malloc("a", 40 * MIB)
    allocator.malloc("b", 42 * MIB)
    allocator.free("a")
    allocator.malloc("c", 44 * MIB)
    allocator.free("b")
    # 126 MiB are reserved, 26 above the threshold. a is unused for two requests, b for one: only a is released.
    allocator.malloc("d", 46 * MIB)
    assert allocator.reserved_bytes == (126 - 40 + 46) * MIB
    # 132 MiB, 32 above the threshold: b of 42 MiB is enough.
    allocator.malloc("e", 48 * MIB)
    assert allocator.reserved_bytes == (132 - 42 + 48) * MIB


@pytest.mark.parametrize("released", ["empty_cache", "garbage collection"])
def test_a_segment_in_use_is_not_released(released: str) -> None:
    settings = AllocatorSettings(limit_bytes=1000 * MIB, garbage_collection_threshold=0.001)
    allocator = CachingAllocator(settings if released == "garbage collection" else None)
    for name in "abc":  # 5 MiB each of one segment of 20 MiB
        allocator.malloc(name, 5 * MIB)
    allocator.free("a")
    allocator.free("c")  # free blocks remain before b and behind it
    if released == "empty_cache":
        allocator.empty_cache()
        assert allocator.reserved_bytes == 20 * MIB
    else:
        allocator.malloc("new", 12 * MIB)
        assert allocator.reserved_bytes == 32 * MIB
    allocator.free("b")
    allocator.empty_cache()
    assert allocator.reserved_bytes == (0 if released == "empty_cache" else 12 * MIB)


def pages() -> CachingAllocator:
    """An expandable segment of three pages of 20 MiB: 30 MiB of a, 25 of b and 5 of c."""
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    for name, size in (("a", 30), ("b", 25), ("c", 5)):
        allocator.malloc(name, size * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    return allocator


@pytest.mark.parametrize(
    ("freed", "reserved_mib"),
    [
        ("a", 40),  # 0 to 30 MiB: the first page
        ("b", 60),  # 30 to 55 MiB hold no whole page
        ("c", 60),
        ("bc", 40),  # 30 to 60 MiB: the last page
        ("ab", 20),
        ("ac", 40),
        ("abc", 0),
    ],
)
def test_the_whole_pages_of_what_is_free_are_released(freed: str, reserved_mib: int) -> None:
    allocator = pages()
    for name in freed:
        allocator.free(name)
    allocator.empty_cache()
    assert allocator.reserved_bytes == reserved_mib * MIB


def test_what_cannot_grow_is_taken_before_what_can() -> None:
    """The block at the end of an expandable segment fits more tightly, but keeps its room to grow."""
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    addresses = {
        name: allocator.malloc(name, size * MIB) for name, size in (("a", 20), ("b", 60), ("c", 20), ("d", 40))
    }
    allocator.free("b")
    allocator.free("d")
    assert allocator.malloc("new", 30 * MIB) == addresses["b"]
    assert allocator.malloc("newer", 70 * MIB) == addresses["d"]
    assert allocator.reserved_bytes == (20 + 60 + 20 + 80) * MIB


def test_of_blocks_that_cannot_grow_the_smallest_is_taken() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    sizes = {"a": 20, "b": 60, "c": 20, "d": 40, "e": 100}
    addresses = {name: allocator.malloc(name, size * MIB) for name, size in sizes.items()}
    allocator.free("b")
    allocator.free("d")
    assert allocator.malloc("new", 30 * MIB) == addresses["d"]


def test_released_pages_join_the_free_memory_behind_them() -> None:
    allocator = pages()
    allocator.free("a")
    start = allocator.malloc("a", 30 * MIB)
    allocator.free("a")
    allocator.free("b")
    allocator.empty_cache()  # 0 to 40 MiB are released, 40 to 55 MiB stay
    assert allocator.malloc("new", 45 * MIB) == start  # 40 MiB of pages and 5 of the 15 behind them
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (60 * MIB, 50 * MIB)
    assert allocator.malloc("rest", 10 * MIB) == start + 45 * MIB
    assert allocator.reserved_bytes == 60 * MIB


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("max_split_mib", [None, 20])
@pytest.mark.parametrize("limit_mib", [None, 150])
def test_any_order_of_requests_keeps_the_books(
    expandable: bool, max_split_mib: int | None, limit_mib: int | None
) -> None:
    """Blocks never overlap, the totals are those of the live tensors, and an empty device has nothing reserved."""
    settings = AllocatorSettings(
        expandable_segments=expandable,
        max_split_size_bytes=max_split_mib and max_split_mib * MIB,
        limit_bytes=limit_mib and limit_mib * MIB,
    )
    sizes = (1, 600, 300 * 1024, MIB, MIB + 1, 3 * MIB, 9 * MIB, 11 * MIB, 25 * MIB, 45 * MIB)
    for seed in range(12):
        rng, allocator = random.Random(seed), CachingAllocator(settings)
        live: dict[int, tuple[int, int, int]] = {}  # address, size of the block and of the tensor
        for name in range(100):
            choice = rng.random()
            if live and choice < 0.45:
                freed = rng.choice(list(live))
                allocator.free(freed)
                del live[freed]
            elif choice < 0.5:
                allocator.empty_cache()
            else:
                size = rng.choice(sizes)
                try:
                    live[name] = allocator.malloc(name, size), allocator.block_bytes(name), size
                except OutOfMemoryError:
                    assert limit_mib is not None
            blocks = sorted(live.values())
            assert all(start + size <= after for (start, size, _), (after, _, _) in pairwise(blocks))
            assert allocator.requested_bytes == sum(size for _, _, size in blocks)
            assert allocator.allocated_bytes == sum(size for _, size, _ in blocks) <= allocator.reserved_bytes
            assert limit_mib is None or allocator.reserved_bytes <= limit_mib * MIB
        for name in live:
            allocator.free(name)
        allocator.empty_cache()
        assert (allocator.requested_bytes, allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0, 0)
