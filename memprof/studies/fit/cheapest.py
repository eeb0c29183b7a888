"""The cheapest combination of techniques that fits, without measuring them all.

Techniques of one kind make a family, of which a combination takes at most one. Two orders are known before anything is
measured. Costs are compared exactly: first whether the training is another one, then whether bytes go to the host, then
the operations that are computed again, then the effort. Memory is compared in part only: a combination holds less than
another where it does so in some families and is the same in the rest.

Each measurement is a compile, and it decides more than its own combination. Where one fits, all that cost as much or
more are out: they may fit, but are no better. Where one does not, all that are expected to hold more are out too. The
next to measure is the one that decides most whichever way it ends, as in a bisection. When nothing cheaper than the
best is open, its neighbours are measured where that has not been done: in each family the next cheaper choice, so that
no technique is in the answer that could be left out or made cheaper by itself.

What is expected of memory is checked as measurements come in: where a combination holds more than one that it should
hold less than, the families in which they differ are doubted, and from then on nothing is inferred from their order.

    families = (Family(name="structure", choices=(NOTHING, Choice(label="donate", level=1))), ...)
    search = CheapestSearch(combine(families), budget_bytes=...)
    while (combination := search.next()) is not None:
        search.record(combination, measure(combination.label))
    search.best

On a table whose order is as expected the answer costs no more than any combination that fits; on any table it fits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations, product


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cost:
    """What a combination costs, in the order in which it counts: a later field only decides between equals.

    Attributes:
        changes_training: the optimizer is another, and with it the result of the training.
        moves_to_host: bytes go to host memory and come back in each step.
        recomputed_flops: floating-point operations of a step that are computed again.
        effort: how much of the rest: passes over parts of the batch, another precision. Small numbers without a unit.
    """

    changes_training: bool = False
    moves_to_host: bool = False
    recomputed_flops: int = 0
    effort: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            changes_training=self.changes_training or other.changes_training,
            moves_to_host=self.moves_to_host or other.moves_to_host,
            recomputed_flops=self.recomputed_flops + other.recomputed_flops,
            effort=self.effort + other.effort,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a family.

    Attributes:
        label: of the technique, `bf16`; empty for none.
        level: a choice is expected to hold less than those of a lower level; nothing is expected of two of one level,
            nor of one without a level (None) and any other.
    """

    label: str
    level: int | None
    cost: Cost = Cost()

    def holds_less_than(self, other: Choice) -> bool:
        """Whether it is expected to hold less."""
        return self.level is not None and other.level is not None and self.level > other.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Choices of which a combination has one; leaving the family out is one of them."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One choice of each family, in the order of the families; `cost` is that of all of them."""

    choices: tuple[Choice, ...]
    cost: Cost

    @property
    def label(self) -> str:
        """The techniques, joined with `+`; empty where there are none."""
        return "+".join(self.techniques)

    @property
    def techniques(self) -> tuple[str, ...]:
        """Their labels."""
        return tuple(choice.label for choice in self.choices if choice.label)

    def differences(self, other: Combination) -> list[int]:
        """The numbers of the families in which two combinations differ."""
        return [
            number
            for number, (own, others) in enumerate(zip(self.choices, other.choices, strict=True))
            if own is not others
        ]

    def holds_less_than(self, other: Combination, *, doubted: Collection[int] = ()) -> bool:
        """Whether it is expected to hold less; not where they differ in a family whose order is doubted."""
        differences = self.differences(other)
        return bool(differences) and all(
            number not in doubted and self.choices[number].holds_less_than(other.choices[number])
            for number in differences
        )


def combine(families: Sequence[Family]) -> tuple[Combination, ...]:
    """Every combination, those that cost least first."""
    combinations = (
        Combination(choices=choices, cost=sum((choice.cost for choice in choices), start=Cost()))
        for choices in product(*(family.choices for family in families))
    )
    return tuple(sorted(combinations, key=lambda combination: combination.cost))


class CheapestSearch:
    """The state of one search. It is asked for what to measure (`next`) and given what came of it (`record`).

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

    @property
    def num_open(self) -> int:
        """How many combinations could still be better than the best."""
        return len(self._open(()))

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
