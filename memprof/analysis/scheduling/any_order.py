"""What a program must hold in any order of its operations, and an order in which it holds less.

XLA runs operations one after another, in an order of its own choice. Others compute the same, and some hold less at
their peak: a weight gradient that waits keeps two arrays, an array that is gathered early lies there unused.

**The lower bound** holds for all orders at once; to find the best of them is NP-hard (Sethi, "Complete register
allocation problems", 1975). A piece of memory is live before an operation, in whatever order, if an operation that
this one needs, directly or not, works on it, and so does this one or one that needs it; and live after it, if this one
or one that it needs works on it, and so does one that needs it. Each operation runs at some time, so no order holds
less than the largest of these sums. The two moments are never added up, since what an operation makes may take the
memory of what it reads.

**The other order** is the best of three. Two move operations greedily: each that frees as much as it takes runs as soon
as it can, then, from the end, each that takes as much as it frees as late as it can. The third goes depth first, as
XLA does where it orders for memory: what an operation makes is used up before the next branch is begun. The peak is
real: nothing else about the program is different. So the least peak of all orders lies between the two numbers.

All of it takes time linear in the size of the program (times words of bits, for the first).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

_TOGETHER = 4  # operations at most
_SMALL = 0.001  # of the largest piece: not worth a bit in each set


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations in the order in which they run, and the pieces of memory that they work on.

    Attributes:
        needs: for each operation those before it that it needs.
        touches: for each the pieces that it reads or writes, each once. A piece is held from the first that touches it
            to the last, inclusive.
        sizes: bytes of each piece.
    """

    needs: Sequence[Sequence[int]]
    touches: Sequence[Sequence[int]]
    sizes: Sequence[int]


def peak_bytes(operations: Operations, order: Iterable[int] | None = None) -> int:
    """What is held when most is held, if the operations run in `order` (None: in that which they have)."""
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
    """Of some pieces those that are held before and after each operation in any order: bit k is that of `pieces[k]`."""
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
    """What every order of the operations holds at its peak, at least: see the module's docstring."""
    sizes = operations.sizes
    least = _SMALL * max(sizes, default=0)
    pieces = sorted((piece for piece, size in enumerate(sizes) if size > least), key=lambda piece: -sizes[piece])
    kinds: dict[int, int] = {}  # the pieces of each size, as bits
    for number, piece in enumerate(pieces):
        kinds[sizes[piece]] = kinds.get(sizes[piece], 0) | 1 << number
    held = {each for pair in held_in_any_order(operations, pieces) for each in pair}
    return max((sum(size * (bits & each).bit_count() for size, bits in kinds.items()) for each in held), default=0)


def other_orders(operations: Operations) -> tuple[list[int], ...]:
    """Other orders: what frees soon moved forward; then what takes early moved back, too; and depth first."""
    followers = _followers(operations)
    forward = _Eager(operations).run(range(len(followers)))
    backwards = Operations(needs=followers, touches=operations.touches, sizes=operations.sizes)
    return forward, _Eager(backwards).run(forward[::-1])[::-1], _depth_first(followers)


def _depth_first(followers: Sequence[Sequence[int]]) -> list[int]:
    """After each operation what needs it, and what needs that, before anything else that was there already."""
    rest = [iter(each) for each in followers]
    seen = [False] * len(followers)
    ended: list[int] = []  # each after all that needs it
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
    """Runs operations in a given order, but each that frees as much as it takes as soon as it can run.

    A few that follow on each other are taken together: a weight gradient, and the update that frees it again.
    """

    def __init__(self, operations: Operations) -> None:
        self._touches, self._sizes = operations.touches, operations.sizes
        self._num_needed = [len(needed) for needed in operations.needs]
        self._followers = _followers(operations)
        # How many operations touch each piece, how many have yet to, and the sum of their numbers: of one, its number.
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
        """Run an operation, and what it makes worth running, if they free as much as they take; else run nothing."""
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
        """By how many bytes more are live after it than before it."""
        taken = 0
        for piece in self._touches[operation]:
            left = self._num_left[piece]
            if left == self._num_touching[piece]:
                taken += self._sizes[piece]
            if left == 1:
                taken -= self._sizes[piece]
        return taken

    def _run(self, operation: int) -> list[int]:
        """Returns those that this may have made worth running."""
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
