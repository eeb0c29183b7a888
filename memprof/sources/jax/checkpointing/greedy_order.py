"""Order a step's kernels greedily, as XLA's list scheduler does.

XLA's default memory scheduler tries such an order and two post-orders, and takes the one with the smallest peak. The
order of the program resembles a post-order, because JAX traces depth first.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An operation with those fused into it. Values and kernels are identified by number.

    Attributes:
        before: the kernels whose results it reads.
        read: the values that it reads.
        made: the values that it writes.
        replaced: the values that it may overwrite with its results, if no other kernel reads them later.
        inner_bytes: bytes of values inside it: the body of a loop.
    """

    before: tuple[int, ...]
    read: frozenset[int]
    made: tuple[int, ...]
    replaced: frozenset[int] = frozenset()
    inner_bytes: int = 0


def greedy_order(kernels: Sequence[Kernel], sizes: Sequence[int], results: Collection[int]) -> list[int]:
    """Return the kernels in a list scheduler's order: next is the one that frees the most bytes, less those it writes.

    Ties go to the kernel that the most kernels wait for, then to the one that was ready last.

    Args:
        sizes: the bytes of each value.
        results: the values that are never freed.
    """
    made = {value for kernel in kernels for value in kernel.made}.difference(results)
    readers: dict[int, list[int]] = defaultdict(list)
    dependents: dict[int, list[int]] = defaultdict(list)
    for number, kernel in enumerate(kernels):
        for value in kernel.read & made:
            readers[value].append(number)
        for each in kernel.before:
            dependents[each].append(number)
    num_readers_left = Counter({value: len(each) for value, each in readers.items()})
    num_pending = [len(kernel.before) for kernel in kernels]
    ready: list[tuple[int, int, int, int]] = []
    order: dict[int, None] = {}
    serial = count()

    def push(number: int) -> None:
        freed = sum(sizes[value] for value in kernels[number].read if num_readers_left[value] == 1)
        written = sum(sizes[value] for value in kernels[number].made)
        heapq.heappush(ready, (written - freed, -len(dependents[number]), -next(serial), number))

    for number, kernel in enumerate(kernels):
        if not kernel.before:
            push(number)
    while ready:
        number = heapq.heappop(ready)[-1]
        if number in order:
            continue
        order[number] = None
        for value in kernels[number].read & made:
            num_readers_left[value] -= 1
            if num_readers_left[value] == 1:  # its last reader frees it
                for each in readers[value]:
                    if each not in order and not num_pending[each]:
                        push(each)
        for each in dependents[number]:
            num_pending[each] -= 1
            if not num_pending[each]:
                push(each)
    return list(order)
