"""A lower bound on a program's peak in any order of its operations, and an order with a lower peak.

XLA runs operations one after another, in an order that it chooses. Other orders compute the same result, and some have
a lower peak: a delayed weight gradient keeps two arrays live, and an array that is gathered early is live but unused.

**The lower bound** holds for all orders; to find the best order is NP-hard (Sethi, "Complete register allocation
problems", 1975). Call the direct and indirect dependencies of an operation its ancestors, and the operations that
depend on it its descendants. In every order, a piece of memory is live before an operation if an ancestor works on it,
and the operation or a descendant does too. It is live after an operation if the operation or an ancestor works on it,
and a descendant does too. Each operation runs at some time, so no order has a lower peak than the largest of these
sums. The two moments are not added up, because the result of an operation may reuse the memory of its operands.

**The other order** is the best of three. Two orders move operations greedily. First, each operation that frees at least
as much as it allocates runs as early as possible. Then, from the end, each operation that allocates at least as much as
it frees runs as late as possible. The third order is depth first, like XLA's order for memory: the result of an
operation is consumed before the next branch begins. The peak of the other order is real, because nothing else in the
program differs. So the least peak of all orders lies between the two numbers.

Both take time linear in the size of the program (times words of bits for the lower bound).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

_TOGETHER = 4  # the most operations that are moved together
_SMALL = 0.001  # of the largest piece; smaller pieces are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations in execution order, and the pieces of memory that they read or write.

    Attributes:
        needs: for each operation, the earlier operations that it needs.
        touches: for each operation, the pieces that it reads or writes, without duplicates. A piece is live from the
            first operation that touches it to the last, inclusive.
        sizes: bytes of each piece.
    """

    needs: Sequence[Sequence[int]]
    touches: Sequence[Sequence[int]]
    sizes: Sequence[int]


def peak_bytes(operations: Operations, order: Iterable[int] | None = None) -> int:
    """Return the peak in bytes if the operations run in `order`; None keeps their own order."""
    touches = operations.touches
    order = range(len(touches)) if order is None else list(order)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, operation in enumerate(order):
        for piece in touches[operation]:
            first.setdefault(piece, place)
            last[piece] = place
    changes = [0] * (len(touches) + 1)
    for piece, place in first.items():
        changes[place] += operations.sizes[piece]
        changes[last[piece] + 1] -= operations.sizes[piece]
    return max(accumulate(changes), default=0)


def held_in_any_order(operations: Operations, pieces: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pieces that are live before and after each operation in any order; bit k stands for `pieces[k]`."""
    bits = {piece: 1 << number for number, piece in enumerate(pieces)}
    own = [sum(bits.get(piece, 0) for piece in touched) for touched in operations.touches]
    before = [0] * len(own)
    for operation, needed in enumerate(operations.needs):
        for other in needed:
            before[operation] |= before[other] | own[other]
    held = [(0, 0)] * len(own)
    after = [0] * len(own)
    for operation in reversed(range(len(own))):
        was, mine, will_be = before[operation], own[operation], after[operation]
        held[operation] = (was & (mine | will_be), (was | mine) & will_be)
        for other in operations.needs[operation]:
            after[other] |= will_be | mine
    return held


def lower_bound_bytes(operations: Operations) -> int:
    """Return a lower bound on the peak of every order of the operations: see the module's docstring."""
    sizes = operations.sizes
    least = _SMALL * max(sizes, default=0)
    pieces = sorted((piece for piece, size in enumerate(sizes) if size > least), key=lambda piece: -sizes[piece])
    kinds: dict[int, int] = {}  # by size: its pieces as bits
    for number, piece in enumerate(pieces):
        kinds[sizes[piece]] = kinds.get(sizes[piece], 0) | 1 << number
    held = {each for pair in held_in_any_order(operations, pieces) for each in pair}
    return max((sum(size * (bits & each).bit_count() for size, bits in kinds.items()) for each in held), default=0)


def other_orders(operations: Operations) -> tuple[list[int], ...]:
    """Return three other orders: frees moved forward; the same with allocations moved back; depth first."""
    followers = _followers(operations)
    forward = _Eager(operations).run(range(len(followers)))
    backwards = Operations(needs=followers, touches=operations.touches, sizes=operations.sizes)
    return forward, _Eager(backwards).run(forward[::-1])[::-1], _depth_first(followers)


def _depth_first(followers: Sequence[Sequence[int]]) -> list[int]:
    """Order operations depth first: after each operation, its users and their users, before any other operation."""
    rest = [iter(each) for each in followers]
    seen = [False] * len(followers)
    ended: list[int] = []  # each operation after all its users
    for beginning in range(len(followers)):
        stack = [] if seen[beginning] else [beginning]
        while stack:
            seen[stack[-1]] = True
            following = next((other for other in rest[stack[-1]] if not seen[other]), None)
            if following is None:
                ended.append(stack.pop())
            else:
                stack.append(following)
    return ended[::-1]


def _followers(operations: Operations) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in operations.needs]
    for operation, needed in enumerate(operations.needs):
        for other in needed:
            followers[other].append(operation)
    return followers


class _Eager:
    """Runs operations in a given order, but each that frees at least as much as it allocates as early as possible.

    A few consecutive operations can move together: a weight gradient, and the update that frees it.
    """

    def __init__(self, operations: Operations) -> None:
        self._touches, self._sizes = operations.touches, operations.sizes
        self._num_needed = [len(needed) for needed in operations.needs]
        self._followers = _followers(operations)
        # For each piece: how many operations touch it, how many of them remain, and the sum of their numbers, which
        # identifies the last one.
        self._num_touching = [0] * len(operations.sizes)
        self._sum_left = [0] * len(operations.sizes)
        for operation, touched in enumerate(operations.touches):
            for piece in touched:
                self._num_touching[piece] += 1
                self._sum_left[piece] += operation
        self._num_left = list(self._num_touching)
        self._has_run = [False] * len(operations.needs)
        self._order: list[int] = []

    def run(self, order: Sequence[int]) -> list[int]:
        candidates = deque(operation for operation in order if not self._num_needed[operation])
        for operation in order:
            if not self._has_run[operation]:
                candidates.extend(self._run(operation))
            while candidates:
                candidate = candidates.popleft()
                if self._can_run(candidate):
                    candidates.extend(self._try(candidate))
        return self._order

    def _can_run(self, operation: int) -> bool:
        return not self._has_run[operation] and not self._num_needed[operation]

    def _try(self, operation: int) -> list[int]:
        """Run an operation and the candidates that follow it, if together they free as much as they allocate.

        Otherwise, run no operation.
        """
        begin, taken = len(self._order), self._takes(operation)
        found = self._run(operation)
        while taken > 0 and len(self._order) - begin < _TOGETHER:
            following = next((other for other in found if self._can_run(other) and self._takes(other) <= 0), None)
            if following is None:
                break
            taken += self._takes(following)
            found += self._run(following)
        if taken <= 0:
            return found
        while len(self._order) > begin:
            self._undo()
        return []

    def _takes(self, operation: int) -> int:
        """Return the increase of the live bytes by an operation."""
        taken = 0
        for piece in self._touches[operation]:
            left = self._num_left[piece]
            if left == self._num_touching[piece]:
                taken += self._sizes[piece]
            if left == 1:
                taken -= self._sizes[piece]
        return taken

    def _run(self, operation: int) -> list[int]:
        """Run an operation. Returns the operations that may now be candidates."""
        self._has_run[operation] = True
        self._order.append(operation)
        found = []
        for piece in self._touches[operation]:
            self._num_left[piece] -= 1
            self._sum_left[piece] -= operation
            if self._num_left[piece] == 1:
                found.append(self._sum_left[piece])
        for follower in self._followers[operation]:
            self._num_needed[follower] -= 1
            if not self._num_needed[follower]:
                found.append(follower)
        return found

    def _undo(self) -> None:
        operation = self._order.pop()
        self._has_run[operation] = False
        for piece in self._touches[operation]:
            self._num_left[piece] += 1
            self._sum_left[piece] += operation
        for follower in self._followers[operation]:
            self._num_needed[follower] += 1
