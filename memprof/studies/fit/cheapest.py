"""The cheapest combination of techniques that fits, without measuring them all.

Each measurement is a compile, and it decides more than its own combination. Where one fits, all that cost as much or
more are out: they may fit, but are no better. Where one does not, all that are expected to hold more are out too. The
next to measure is the one that decides most whichever way it ends, as in a bisection. When nothing cheaper than the
best is open, its neighbours are measured where that has not been done: in each family the next cheaper choice, so that
no technique is in the answer that could be left out or made cheaper by itself.

What is expected of memory is checked as measurements come in: where a combination holds more than one that it should
hold less than, the families in which they differ are doubted, and from then on nothing is inferred from their order.

    search = CheapestSearch(combine(families), budget_bytes=...)
    while (combination := search.next()) is not None:
        search.record(combination, measure(combination.label))
    search.best

On a table whose order is as expected the answer costs no more than any combination that fits; on any table it fits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import permutations

from memprof.studies.fit.combinations import Combination


class CheapestSearch:
    """The state of one search. It is asked for what to measure (`next`) and told what came of it (`record`).

    Args:
        combinations: all there are, those that cost least first.
        budget_bytes: what a footprint must not exceed.
    """

    def __init__(self, combinations: Sequence[Combination], *, budget_bytes: int) -> None:
        self._combinations = tuple(combinations)
        self._budget_bytes = budget_bytes
        self._sizes: dict[Combination, int] = {}
        self._failed: set[Combination] = set()

    def record(self, combination: Combination, footprint_bytes: int | None) -> None:
        """Take a measurement in; None where it failed, from which nothing follows for the others."""
        if footprint_bytes is None:
            self._failed.add(combination)
        else:
            self._sizes[combination] = footprint_bytes

    @property
    def best(self) -> Combination | None:
        """The cheapest of those measured that fit, of two that cost the same the smaller."""
        fitting = [each for each, size in self._sizes.items() if size <= self._budget_bytes]
        return min(fitting, key=lambda each: (each.cost, self._sizes[each]), default=None)

    def next(self, *, under_way: Collection[Combination] = ()) -> Combination | None:
        """What to measure next; None where nothing is left that could be better.

        Args:
            under_way: what is being measured; the next one is chosen as if all of it fitted.
        """
        pending = self._open(under_way) or ([] if under_way else self._neighbours())
        # Nothing that changes the training, or needs the host, is tried before all else is out.
        group = [each for each in pending if _kind(each) == _kind(pending[0])]
        doubted = self._doubted_families()

        def decides(combination: Combination) -> tuple[int, int]:
            if_fits = sum(each.cost >= combination.cost for each in group)
            if_not = 1 + sum(combination.holds_less_than(each, doubted=doubted) for each in group)
            return min(if_fits, if_not), max(if_fits, if_not)

        return max(group, key=decides, default=None)

    def inferred(self) -> tuple[Combination, ...]:
        """Those cheaper than the best that were not measured: one that was, and exceeds, should hold less."""
        limit = self.best.cost if self.best else None
        return tuple(
            each
            for each in self._combinations
            if each not in self._sizes and each not in self._failed and (limit is None or each.cost < limit)
        )

    def contradictions(self) -> list[tuple[Combination, Combination]]:
        """Pairs of which the first holds more than the second, though it was expected to hold less."""
        return [
            (one, other)
            for one, other in permutations(self._sizes, 2)
            if self._sizes[one] > self._sizes[other] and one.holds_less_than(other)
        ]

    def _open(self, under_way: Collection[Combination]) -> list[Combination]:
        doubted = self._doubted_families()
        too_large = [each for each, size in self._sizes.items() if size > self._budget_bytes]
        fitting = [*under_way, *([self.best] if self.best else [])]
        limit = min((each.cost for each in fitting), default=None)
        return [
            each
            for each in self._combinations
            if each not in self._sizes
            and each not in self._failed
            and (limit is None or each.cost < limit)
            and not any(other.holds_less_than(each, doubted=doubted) for other in too_large)
        ]

    def _neighbours(self) -> list[Combination]:
        """Those not yet measured of the combinations next to the best, one in each family, that are cheaper."""
        if self.best is None:
            return []
        next_cheaper: dict[int, Combination] = {}
        for each in self._combinations:  # those that cost least first, so that the nearest stays
            differences = each.differences(self.best)
            if len(differences) == 1 and each.cost < self.best.cost:
                next_cheaper[differences[0]] = each
        return [each for each in next_cheaper.values() if each not in self._sizes and each not in self._failed]

    def _doubted_families(self) -> frozenset[int]:
        return frozenset(number for one, other in self.contradictions() for number in one.differences(other))


def _kind(combination: Combination) -> tuple[bool, bool]:
    return combination.cost.changes_training, combination.cost.moves_to_host
