"""A model of the allocator behind JAX's pool: best fit with coalescing.

It follows XLA's `tsl::BFCAllocator` (xla/tsl/framework/bfc_allocator.cc, as of jaxlib 0.10.2 to 0.12) in everything
that determines whether a request succeeds, and its address:

- Sizes are rounded up to 256 bytes.
- A request takes the smallest free chunk that holds it; ties go to the lowest address. XLA sorts free chunks into bins
  by powers of two and searches them upwards, which finds the same chunk.
- The chunk is split if it is at least twice as large as the request, or larger by at least 128 MiB. Otherwise the
  request keeps all of it.
- A freed chunk merges with adjacent free chunks.
- A preallocated pool is one region. A growing pool adds regions that double in size, starting at 2 MiB. A chunk never
  crosses the border of its region.

    pool = BestFitPool(1 << 20)
    address = pool.take(1000)     # a chunk of 1024 bytes
    pool.free(address)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

ALIGNMENT_BYTES = 256
_MAX_WASTE_BYTES = 128 << 20
_FIRST_REGION_BYTES = 2 << 20
# Regions of a real device can have any addresses; here they are too far apart to be adjacent.
_REGION_GAP = 1 << 64


def rounded(size_bytes: int) -> int:
    """Return the size of the smallest chunk that holds a request, in bytes."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class OutOfPoolError(Exception):
    """No free chunk holds a request, and the pool cannot grow."""


@dataclass(slots=True)
class _Chunk:
    """A part of a region; `before` and `after` are the addresses of its neighbours, None at the region's borders."""

    size_bytes: int
    is_free: bool
    before: int | None
    after: int | None


class BestFitPool:
    """A pool of memory that allocates and frees chunks."""

    def __init__(self, limit_bytes: int, *, grows: bool = False) -> None:
        self._limit_bytes = limit_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._next_region_bytes = rounded(min(limit_bytes, _FIRST_REGION_BYTES) if grows else limit_bytes)
        self._region_bytes = 0  # the sum of all regions
        self._num_regions = 0
        self._chunks: dict[int, _Chunk] = {}  # by address
        self._free: list[tuple[int, int]] = []  # size and address, sorted
        self._in_use_bytes = 0
        self._peak_bytes = 0

    @property
    def in_use_bytes(self) -> int:
        """The total size of the allocated chunks."""
        return self._in_use_bytes

    @property
    def peak_bytes(self) -> int:
        """The maximum of `in_use_bytes` so far."""
        return self._peak_bytes

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that needs no new region."""
        return self._free[-1][0] if self._free else 0

    def take(self, size_bytes: int) -> int:
        """Allocate a chunk for a request of at least one byte, and return its address.

        Raises:
            OutOfPoolError: no free chunk holds the request, and the pool cannot grow.
        """
        wanted = rounded(size_bytes)
        at = bisect_left(self._free, (wanted,))
        if at == len(self._free):
            self._extend(wanted)
            at = bisect_left(self._free, (wanted,))
        found, address = self._free.pop(at)
        chunk = self._chunks[address]
        chunk.is_free = False
        if found >= 2 * wanted or found - wanted >= _MAX_WASTE_BYTES:
            self._split(address, wanted)
        self._in_use_bytes += chunk.size_bytes
        self._peak_bytes = max(self._peak_bytes, self._in_use_bytes)
        return address

    def size_of(self, address: int) -> int:
        """Return the size of an allocated chunk."""
        return self._chunks[address].size_bytes

    def free(self, address: int) -> None:
        """Free a chunk, and merge it with free neighbours."""
        chunk = self._chunks[address]
        assert not chunk.is_free, address
        self._in_use_bytes -= chunk.size_bytes
        chunk.is_free = True
        if chunk.after is not None and self._chunks[chunk.after].is_free:
            self._forget(chunk.after)
            self._merge(address, chunk.after)
        if chunk.before is not None and self._chunks[chunk.before].is_free:
            address, merged = chunk.before, address
            self._forget(address)
            self._merge(address, merged)
        insort(self._free, (self._chunks[address].size_bytes, address))

    def _extend(self, wanted: int) -> None:
        """Add a region that holds a request."""
        available = self._limit_bytes - self._region_bytes
        if wanted > available:
            raise OutOfPoolError
        doubled = False
        while self._next_region_bytes < wanted:
            self._next_region_bytes *= 2
            doubled = True
        size_bytes = min(self._next_region_bytes, available)
        if not doubled:
            self._next_region_bytes *= 2
        address = self._num_regions * _REGION_GAP
        self._num_regions += 1
        self._region_bytes += size_bytes
        self._chunks[address] = _Chunk(size_bytes, is_free=True, before=None, after=None)
        insort(self._free, (size_bytes, address))

    def _split(self, address: int, size_bytes: int) -> None:
        chunk = self._chunks[address]
        rest = address + size_bytes
        self._chunks[rest] = _Chunk(chunk.size_bytes - size_bytes, is_free=True, before=address, after=chunk.after)
        if chunk.after is not None:
            self._chunks[chunk.after].before = rest
        chunk.size_bytes, chunk.after = size_bytes, rest
        insort(self._free, (self._chunks[rest].size_bytes, rest))

    def _merge(self, address: int, following: int) -> None:
        chunk, merged = self._chunks[address], self._chunks.pop(following)
        chunk.size_bytes += merged.size_bytes
        chunk.after = merged.after
        if merged.after is not None:
            self._chunks[merged.after].before = address

    def _forget(self, address: int) -> None:
        """Remove a chunk from the list of free chunks."""
        self._free.pop(bisect_left(self._free, (self._chunks[address].size_bytes, address)))
