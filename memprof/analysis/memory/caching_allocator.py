"""A model of PyTorch's caching allocator: the memory that it reserves for a sequence of allocations and frees.

    allocator = CachingAllocator(AllocatorSettings())
    allocator.malloc("weights", 3 * 2**20)
    allocator.reserved_bytes        # 20 MiB: a segment that is split

Tensors lie in blocks, and blocks lie in segments. A freed block stays reserved; the smallest free block that is large
enough serves the next request. The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.1 to 2.13) for one
stream; private pools of CUDA graphs and `roundup_power2_divisions` are not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from memprof.errors import MemprofError

MIB = 1 << 20
BLOCK_BYTES = 512  # kMinBlockSize: sizes are rounded up to a multiple of this
SMALL_BYTES = MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer: for requests below kMinLargeAlloc
OWN_SEGMENT_BYTES = 10 * MIB  # kMinLargeAlloc: a request of this size or larger gets its own segment
ROUND_LARGE_BYTES = 2 * MIB  # kRoundLarge: such a segment is rounded up to a multiple of this
_ADDRESSES = 20 * (1 << 50)  # the address range of an expandable segment; a multiple of both page sizes


class OutOfMemoryError(MemprofError):
    """A request does not fit the limit, even after all cached segments are released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """The settings of `PYTORCH_CUDA_ALLOC_CONF` that affect reserved memory.

    Attributes:
        expandable_segments: whether each pool is one segment that grows by pages.
        max_split_size_bytes: blocks of this size or larger are not split; None splits blocks of any size.
        garbage_collection_threshold: the share of the limit above which unused segments are released; 0 means never.
        limit_bytes: the largest amount of reserved memory (`torch.cuda.set_per_process_memory_fraction`); None means
            no limit.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    garbage_collection_threshold: float = 0.0
    limit_bytes: int | None = None


@dataclass(slots=True, eq=False)
class _Block:
    """A part of a segment. `is_mapped` is False for addresses of an expandable segment without memory."""

    address: int
    size_bytes: int
    pool: _Pool
    previous: _Block | None = None
    next: _Block | None = None
    is_free: bool = True
    is_mapped: bool = True
    requested_bytes: int = 0
    freed_at: int = 0

    @property
    def is_split(self) -> bool:
        return self.previous is not None or self.next is not None


@dataclass(slots=True, eq=False)
class _Pool:
    """The free blocks for small or for large requests, by size and address."""

    is_small: bool
    free: list[tuple[int, int, _Block]] = field(default_factory=list)
    last: _Block | None = None  # the end of its expandable segment
    num_searches: int = 0

    @property
    def page_bytes(self) -> int:
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def insert(self, block: _Block) -> None:
        block.freed_at = self.num_searches
        insort(self.free, (block.size_bytes, block.address, block))

    def remove(self, block: _Block) -> None:
        del self.free[bisect_left(self.free, (block.size_bytes, block.address))]

    def at_least(self, size_bytes: int) -> Iterator[_Block]:
        return (self.free[place][2] for place in range(bisect_left(self.free, (size_bytes,)), len(self.free)))


def rounded_size(size_bytes: int) -> int:
    """Return the size of a block for a request, in bytes."""
    return max(-(-size_bytes // BLOCK_BYTES), 1) * BLOCK_BYTES


def segment_size(rounded_bytes: int) -> int:
    """Return the size of a new segment for a block of the given size, in bytes."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


class CachingAllocator:
    """The allocator of one device and stream.

    Attributes:
        requested_bytes: the total size of the live tensors (`requested_bytes` in `torch.cuda.memory_stats`).
        allocated_bytes: the total size of their blocks, which are rounded up (`torch.cuda.memory_allocated`).
        reserved_bytes: the total size of all segments (`torch.cuda.memory_reserved`).
        peak_allocated_bytes, peak_reserved_bytes: the maximum of each so far.
        num_retries: the number of requests that released all cached segments (`num_alloc_retries`).
    """

    def __init__(self, settings: AllocatorSettings | None = None) -> None:
        self._settings = settings or AllocatorSettings()
        self._pools = _Pool(is_small=True), _Pool(is_small=False)
        self._blocks: dict[Hashable, _Block] = {}
        self._next_address = 0
        self.requested_bytes = self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.num_retries = 0

    def malloc(self, name: Hashable, size_bytes: int) -> int:
        """Allocate a tensor. Returns its address, which serves only to distinguish tensors.

        Args:
            name: the key for `free`, unique among the live tensors.
            size_bytes: the size of its storage. An empty storage takes no memory.

        Raises:
            OutOfMemoryError: it does not fit the limit.
        """
        assert name not in self._blocks, name
        if not size_bytes:
            return 0
        rounded = rounded_size(size_bytes)
        pool = self._pools[rounded > SMALL_BYTES]
        block = self._cached(pool, rounded) or self._new(pool, rounded)
        if self._is_to_split(block, rounded):
            self._split(block, rounded)
        block.is_free, block.requested_bytes = False, size_bytes
        self._blocks[name] = block
        self.requested_bytes += size_bytes
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block.address

    def free(self, name: Hashable) -> None:
        """Free a tensor. Its block stays reserved and merges with free neighbours."""
        block = self._blocks.pop(name, None)
        if block is None:
            return
        self.requested_bytes -= block.requested_bytes
        self.allocated_bytes -= block.size_bytes
        block.is_free = True
        self._merge(block)
        block.pool.insert(block)

    def block_bytes(self, name: Hashable) -> int:
        """Return the size of a live tensor's block; 0 for an empty storage."""
        return self._blocks[name].size_bytes if name in self._blocks else 0

    def empty_cache(self) -> None:
        """Release all unused memory that can be released (`torch.cuda.empty_cache`)."""
        for pool in self._pools:
            for _, _, block in list(pool.free):
                if self._settings.expandable_segments:
                    self._unmap(block)
                elif not block.is_split:
                    self._release(block)

    def _cached(self, pool: _Pool, size_bytes: int) -> _Block | None:
        """Remove the free block that serves a request from its pool, and return it; None if there is no such block."""
        pool.num_searches += 1
        candidates = pool.at_least(size_bytes)
        block = next(candidates, None)
        if block is None:
            return None
        if self._settings.expandable_segments:
            for other in candidates:
                if _expandable_bytes(other) >= _expandable_bytes(block):
                    break
                block = other
        most = self._settings.max_split_size_bytes
        if most is not None:
            if size_bytes < most <= block.size_bytes:
                return None
            if size_bytes >= most and block.size_bytes >= size_bytes + LARGE_SEGMENT_BYTES:
                return None
        pool.remove(block)
        return block

    def _new(self, pool: _Pool, size_bytes: int) -> _Block:
        """Return a block of new memory."""
        settings = self._settings
        if settings.garbage_collection_threshold and settings.limit_bytes is not None:
            self._collect_garbage(settings.limit_bytes * settings.garbage_collection_threshold)
        block = self._reserve(pool, size_bytes)
        if block is None and settings.max_split_size_bytes is not None and not settings.expandable_segments:
            self._release_oversize(pool, size_bytes)
            block = self._reserve(pool, size_bytes)
        if block is None:
            self.num_retries += 1
            self.empty_cache()
            block = self._reserve(pool, size_bytes)
        if block is None:
            raise OutOfMemoryError(
                f"a tensor of {size_bytes:,} bytes does not fit: {self.reserved_bytes:,} of {settings.limit_bytes:,}"
                " bytes are reserved"
            )
        return block

    def _reserve(self, pool: _Pool, size_bytes: int) -> _Block | None:
        if self._settings.expandable_segments:
            return self._expand(pool, size_bytes)
        size = segment_size(size_bytes)
        if not self._grows(size):
            return None
        block = _Block(self._next_address, size, pool)
        self._next_address += size
        return block

    def _grows(self, size_bytes: int) -> bool:
        """Count memory as reserved, unless it exceeds the limit."""
        limit = self._settings.limit_bytes
        if limit is not None and self.reserved_bytes + size_bytes > limit:
            return False
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _is_to_split(self, block: _Block, size_bytes: int) -> bool:
        rest = block.size_bytes - size_bytes
        if block.pool.is_small or self._settings.expandable_segments:
            return rest >= BLOCK_BYTES
        most = self._settings.max_split_size_bytes
        return (most is None or size_bytes < most) and rest > SMALL_BYTES

    def _split(self, block: _Block, size_bytes: int) -> None:
        """Cut a block to a size; the rest becomes a free block after it."""
        rest = _cut(block, size_bytes)
        block.pool.insert(rest)

    def _merge(self, block: _Block) -> None:
        """Merge a block that is in no list with its free neighbours of the same kind."""
        for other in (block.previous, block.next):
            if other is None or not other.is_free or other.is_mapped is not block.is_mapped:
                continue
            if other.is_mapped:
                other.pool.remove(other)
            if other is block.previous:
                block.address, block.previous = other.address, other.previous
                if block.previous is not None:
                    block.previous.next = block
                block.size_bytes += other.size_bytes
            else:
                _absorb(block, other)
            if other.pool.last is other:
                other.pool.last = block

    def _release(self, block: _Block) -> None:
        """Return a whole free segment to the device."""
        block.pool.remove(block)
        self.reserved_bytes -= block.size_bytes

    def _release_oversize(self, pool: _Pool, size_bytes: int) -> None:
        """Release free segments that must not be split, but no more than the request needs."""
        most = self._settings.max_split_size_bytes
        assert most is not None
        needed = max(size_bytes, most)
        block = next(pool.at_least(needed), None)
        if block is not None:
            self._release(block)
            return
        released = 0
        while released < needed and pool.free and pool.free[-1][0] >= most:
            released += pool.free[-1][0]
            self._release(pool.free[-1][2])

    def _collect_garbage(self, threshold_bytes: float) -> None:
        """Release large segments that were unused for at least the average time, until enough memory is released."""
        if self.reserved_bytes <= threshold_bytes or self._settings.expandable_segments:
            return
        large = self._pools[1]
        target_bytes = self.reserved_bytes - threshold_bytes
        while target_bytes > 0:
            unused = [block for _, _, block in large.free if not block.is_split]
            if not unused:
                return
            average = sum(large.num_searches - block.freed_at for block in unused) / len(unused)
            for block in unused:
                if large.num_searches - block.freed_at >= average:
                    target_bytes -= block.size_bytes
                    self._release(block)

    def _expand(self, pool: _Pool, size_bytes: int) -> _Block | None:
        """Map pages at the lowest address with room in the pool's segment. Returns None beyond the limit."""
        if pool.last is None:
            # Each pool has its own address range, which is larger than the memory of any device.
            pool.last = _Block(0 if pool.is_small else _ADDRESSES, _ADDRESSES, pool, is_mapped=False)
        block = self._room(pool.last, size_bytes)
        if block.is_mapped:
            pool.remove(block)
        elif self._map(block, min(size_bytes, block.size_bytes)):
            self._absorb_free(block)
        else:
            return None
        while block.size_bytes < size_bytes:
            hole = block.next
            assert hole is not None
            if not self._map(hole, min(size_bytes - block.size_bytes, hole.size_bytes)):
                pool.insert(block)
                return None
            _absorb(block, hole)
            self._absorb_free(block)
        return block

    def _room(self, last: _Block, size_bytes: int) -> _Block:
        """Return the first block of the lowest run of free blocks that contains a hole and has room."""
        holes: list[_Block] = []
        block: _Block | None = last
        while block is not None:
            if not block.is_mapped:
                holes.append(block)
            block = block.previous
        for hole in reversed(holes):
            before = hole.previous
            start = before if before is not None and before.is_free else hole
            room, each = 0, start
            while each is not None and each.is_free:
                room, each = room + each.size_bytes, each.next  # type: ignore[assignment]
            if room >= size_bytes:
                return start
        raise AssertionError("the last hole fits every block")

    def _map(self, hole: _Block, size_bytes: int) -> bool:
        """Map memory to the beginning of a hole, in whole pages."""
        page = hole.pool.page_bytes
        mapped = min(-(-size_bytes // page) * page, hole.size_bytes)
        if not self._grows(mapped):
            return False
        if mapped < hole.size_bytes:
            rest = _cut(hole, mapped)
            rest.is_mapped = False
            if hole.pool.last is hole:
                hole.pool.last = rest
        hole.is_mapped = True
        return True

    def _absorb_free(self, block: _Block) -> None:
        """Merge a block with a free mapped block after it."""
        other = block.next
        if other is not None and other.is_free and other.is_mapped:
            other.pool.remove(other)
            _absorb(block, other)

    def _unmap(self, block: _Block) -> None:
        """Unmap the whole pages inside a free block."""
        page = block.pool.page_bytes
        start = -(-block.address // page) * page
        end = (block.address + block.size_bytes) // page * page
        if end <= start:
            return
        block.pool.remove(block)
        if start > block.address:
            rest = _cut(block, start - block.address)
            block.pool.insert(block)
            block = rest
        if block.size_bytes > end - start:
            block.pool.insert(_cut(block, end - start))
        block.is_mapped = False
        self.reserved_bytes -= end - start
        self._merge(block)


def _cut(block: _Block, size_bytes: int) -> _Block:
    """Cut a block to a size, and return the free rest after it, which is in no list."""
    rest = _Block(block.address + size_bytes, block.size_bytes - size_bytes, block.pool, block, block.next)
    rest.is_mapped = block.is_mapped
    if rest.next is not None:
        rest.next.previous = rest
    block.next, block.size_bytes = rest, size_bytes
    return rest


def _absorb(block: _Block, after: _Block) -> None:
    """Merge a block with the one after it."""
    block.size_bytes += after.size_bytes
    block.next = after.next
    if block.next is not None:
        block.next.previous = block


def _expandable_bytes(block: _Block) -> int:
    """Return the size to which a free block can grow in its segment."""
    after = block.next
    return block.size_bytes + (after.size_bytes if after is not None and not after.is_mapped else 0)
