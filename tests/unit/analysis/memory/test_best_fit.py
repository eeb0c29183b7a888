"""The model of XLA's pool, against the published tests of the allocator that it models.

The sequences are those of TensorFlow's gpu_bfc_allocator_test.cc (tensorflow/core/common_runtime/gpu) and of XLA's
bfc_allocator_test.cc (xla/tsl/framework), with the numbers that they expect; then come cases by hand.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from memprof.analysis.memory.best_fit import BestFitPool, OutOfPoolError, rounded

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _check_apart(pool: BestFitPool, addresses: list[int]) -> None:
    places = sorted((address, address + pool.size_of(address)) for address in addresses)
    assert all(end <= following for (_, end), (following, _) in pairwise(places))


@pytest.mark.parametrize("grows", [False, True])
def test_chunks_of_1023_sizes_do_not_overlap(grows: bool) -> None:
    pool = BestFitPool(GIB, grows=grows)
    taken = [pool.take(size) for size in range(1, 1024)]
    # 256 sizes round to each of 256, 512 and 768, but for size 0; the last 255 to 1024.
    assert pool.in_use_bytes == pool.peak_bytes == 654_336
    _check_apart(pool, taken)
    for address in taken:
        pool.free(address)
    assert (pool.in_use_bytes, pool.peak_bytes) == (0, 654_336)


@pytest.mark.parametrize(
    ("sizes", "free"),
    [
        # Regions of 2, 4, 8 MiB and so on; a region for a larger request is doubled until it holds the request.
        ((2 * MIB,), 0),
        ((2 * MIB, 4 * MIB), 0),
        ((2 * MIB, 4 * MIB, 1), 8 * MIB - 256),
        ((4 * MIB,), 0),
        ((4 * MIB + 1, 1), 8 * MIB - 256),
        ((4 * MIB, 1), 4 * MIB - 256),  # what was doubled is not doubled again
    ],
)
def test_a_growing_pool_takes_larger_and_larger_regions(sizes: tuple[int, ...], free: int) -> None:
    pool = BestFitPool(GIB, grows=True)
    for size in sizes:
        pool.take(size)
    assert pool.largest_free_bytes == free


@pytest.mark.parametrize("grows", [False, True])
def test_half_is_freed_and_taken_again(grows: bool) -> None:
    pool, sizes = BestFitPool(GIB, grows=grows), random.Random(123)
    first = [pool.take(sizes.randint(100, MIB)) for _ in range(255)]
    kept = first[::2]
    for address in first[1::2]:
        pool.free(address)
    kept += [pool.take(sizes.randint(100, MIB)) for _ in range(255)]
    _check_apart(pool, kept)


def test_freed_neighbours_become_one_chunk() -> None:
    pool = BestFitPool(GIB)
    first = pool.take(4096)
    pool.free(first)
    sizes = (4096, 8 * MIB, 16 * KIB, 40 * MIB)
    for _ in range(1024):
        for address in [pool.take(size) for size in sizes]:
            pool.free(address)
    assert (pool.in_use_bytes, pool.peak_bytes, pool.largest_free_bytes) == (0, sum(sizes), GIB)
    assert pool.take(4096) == first


def test_four_bytes_take_256() -> None:
    pool = BestFitPool(GIB)
    assert pool.size_of(pool.take(4)) == 256
    assert [rounded(size) for size in (1, 256, 257)] == [256, 256, 512]


def test_a_pool_of_one_mebibyte_refuses_four() -> None:
    pool = BestFitPool(MIB, grows=True)
    pool.take(256)
    with pytest.raises(OutOfPoolError):
        pool.take(4 * MIB)


def test_a_request_beyond_the_limit_is_refused() -> None:
    pool = BestFitPool(1024)
    pool.take(512)
    with pytest.raises(OutOfPoolError):
        pool.take(2048)


def test_a_pool_that_is_full_is_whole_again_when_all_is_freed() -> None:
    pool = BestFitPool(GIB)
    taken = [pool.take(32 * MIB) for _ in range(32)]
    assert pool.largest_free_bytes == 0
    for address in taken:
        pool.free(address)
    assert pool.take(18 * MIB) == taken[0]


def test_any_order_of_takes_and_frees_leaves_nothing_behind() -> None:
    pool, order = BestFitPool(16 * MIB, grows=True), random.Random(42)
    sizes = [1, 128, 256, 700, 1024, 4096, 8192] * 50
    for _ in range(20):
        order.shuffle(sizes)
        taken = [pool.take(size) for size in sizes]
        _check_apart(pool, taken)
        order.shuffle(taken)
        for address in taken:
            pool.free(address)
        assert pool.in_use_bytes == 0


def test_the_smallest_hole_that_holds_a_request_is_taken() -> None:
    pool = BestFitPool(100 * KIB)
    large, _, small, _ = (pool.take(size * KIB) for size in (20, 1, 8, 1))
    pool.free(large)
    pool.free(small)
    assert pool.take(5 * KIB) == small
    assert pool.take(5 * KIB) == large


def test_of_equal_holes_the_lower_one_is_taken() -> None:
    pool = BestFitPool(100 * KIB)
    first, _, second, _ = (pool.take(size * KIB) for size in (8, 1, 8, 1))
    pool.free(second)
    pool.free(first)
    assert pool.take(8 * KIB) == first


def test_a_chunk_is_split_when_it_is_twice_as_large() -> None:
    pool = BestFitPool(8 * KIB)
    assert pool.size_of(pool.take(4 * KIB)) == 4 * KIB
    assert pool.size_of(pool.take(2 * KIB + 1)) == 4 * KIB  # 2,304 bytes of 4,096: the rest is not worth a chunk


def test_a_chunk_is_split_when_128_mebibytes_would_be_wasted() -> None:
    assert BestFitPool(GIB).take(GIB - 128 * MIB) == 0
    pool = BestFitPool(GIB)
    pool.take(GIB - 128 * MIB)
    assert pool.largest_free_bytes == 128 * MIB
    pool = BestFitPool(GIB)
    pool.take(GIB - 128 * MIB + 256)
    assert pool.largest_free_bytes == 0


def test_a_pool_that_grows_doubles_its_regions() -> None:
    pool = BestFitPool(32 * MIB, grows=True)
    pool.take(MIB)  # a region of 2 MiB
    pool.take(2 * MIB)  # one of 4
    assert pool.largest_free_bytes == 2 * MIB
    assert pool.size_of(pool.take(10 * MIB)) == 16 * MIB  # one of 16, since 8 do not hold it; 6 are not split off
    # 2 + 4 + 16 MiB are taken from the device: no region of 11 MiB is left, though 13 of 32 MiB are free.
    with pytest.raises(OutOfPoolError):
        pool.take(11 * MIB)
    assert pool.in_use_bytes == 19 * MIB
