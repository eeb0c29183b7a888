"""Find the cheapest combination of techniques that fits, without measuring all of them.

Techniques of one kind form a family, and a combination takes at most one of each family. Two orders are known before
any measurement. Costs are compared exactly: first whether the training changes, then whether bytes go to the host, then
the recomputed operations, then the effort. Memory is compared only partially: a combination holds less than another if
it does so in some families and is the same in the rest.

Each measurement is a compile, and it decides more than its own combination. If a combination fits, all others of the
same or a higher cost are out: they may fit, but are no better. If it does not fit, all that are expected to hold more
are out too. The next combination to measure is the one that decides most in its worse outcome, as in a bisection. When
no combination cheaper than the best is open, the unmeasured neighbours of the best are measured: in each family the
next cheaper choice. So the answer contains no technique that could be left out or made cheaper by itself.

The expected order of memory is checked as measurements arrive. If a combination holds more than one that it should
hold less than, the families in which they differ are doubted, and their order is no longer used.

    families = (Family(name="structure", choices=(NOTHING, Choice(label="donate", level=1))), ...)
    search = CheapestSearch(combine(families), budget_bytes=...)
    while (combination := search.next()) is not None:
        search.record(combination, measure(combination.label))
    search.best

If the order of memory is as expected, the answer costs no more than any combination that fits. In any case it fits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations, product


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cost:
    """The cost of a combination. A later field only decides if the earlier ones are equal.

    Attributes:
        changes_training: whether another optimizer is used, which changes the result of the training.
        moves_to_host: whether bytes go to host memory and come back in each step.
        recomputed_flops: FLOPs of a step that are recomputed.
        effort: other costs: passes over parts of the batch, another precision. Small numbers without a unit.
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
        label: label of the technique, `bf16`; empty for none.
        level: a choice is expected to hold less than choices of a lower level. Two choices of one level have no
            expected order, nor does a choice without a level (None) with any other.
    """

    label: str
    level: int | None
    cost: Cost = Cost()

    def holds_less_than(self, other: Choice) -> bool:
        """Return whether it is expected to hold less."""
        return self.level is not None and other.level is not None and self.level > other.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Alternative choices, of which a combination has one; leaving the family out is one of them."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One choice of each family, in the order of the families; `cost` is their total."""

    choices: tuple[Choice, ...]
    cost: Cost

    @property
    def label(self) -> str:
        """The techniques, joined by `+`; empty if there are none."""
        return "+".join(self.techniques)

    @property
    def techniques(self) -> tuple[str, ...]:
        """The labels of the techniques."""
        return tuple(choice.label for choice in self.choices if choice.label)

    def differences(self, other: Combination) -> list[int]:
        """Return the numbers of the families in which two combinations differ."""
        return [
            number
            for number, (own, others) in enumerate(zip(self.choices, other.choices, strict=True))
            if own is not others
        ]

    def holds_less_than(self, other: Combination, *, doubted: Collection[int] = ()) -> bool:
        """Return whether it is expected to hold less; False if they differ in a family whose order is doubted."""
        differences = self.differences(other)
        return bool(differences) and all(
            number not in doubted and self.choices[number].holds_less_than(other.choices[number])
            for number in differences
        )


def combine(families: Sequence[Family]) -> tuple[Combination, ...]:
    """Return every combination, cheapest first."""
    combinations = (
        Combination(choices=choices, cost=sum((choice.cost for choice in choices), start=Cost()))
        for choices in product(*(family.choices for family in families))
    )
    return tuple(sorted(combinations, key=lambda combination: combination.cost))


class CheapestSearch:
    """The state of one search. `next` returns what to measure, and `record` takes the result.

    Args:
        combinations: all combinations, cheapest first.
        budget_bytes: the largest footprint that fits.
    """

    def __init__(self, combinations: Sequence[Combination], *, budget_bytes: int) -> None:
        self._combinations = tuple(combinations)
        self._budget_bytes = budget_bytes
        self._sizes: dict[Combination, int] = {}
        self._failed: set[Combination] = set()

    def record(self, combination: Combination, footprint_bytes: int | None) -> None:
        """Record a measurement; None if it failed, which implies nothing for the others."""
        if footprint_bytes is None:
            self._failed.add(combination)
        else:
            self._sizes[combination] = footprint_bytes

    @property
    def best(self) -> Combination | None:
        """The cheapest measured combination that fits; ties go to the smaller one."""
        fitting = [each for each, size in self._sizes.items() if size <= self._budget_bytes]
        return min(fitting, key=lambda each: (each.cost, self._sizes[each]), default=None)

    @property
    def num_open(self) -> int:
        """The number of combinations that could still be better than the best."""
        return len(self._open(()))

    def next(self, *, under_way: Collection[Combination] = ()) -> Combination | None:
        """Return the combination to measure next; None if no open combination could be better.

        Args:
            under_way: combinations that are being measured; the next one is chosen as if all of these fitted.
        """
        pending = self._open(under_way) or ([] if under_way else self._neighbours())
        # Combinations that change the training, or need the host, are tried only after all others are out.
        group = [each for each in pending if _kind(each) == _kind(pending[0])]
        doubted = self._doubted_families()

        def decides(combination: Combination) -> tuple[int, int]:
            if_fits = sum(each.cost >= combination.cost for each in group)
            if_not = 1 + sum(combination.holds_less_than(each, doubted=doubted) for each in group)
            return min(if_fits, if_not), max(if_fits, if_not)

        return max(group, key=decides, default=None)

    def inferred(self) -> tuple[Combination, ...]:
        """Return the cheaper, unmeasured combinations: one that should hold less was measured, and does not fit."""
        limit = self.best.cost if self.best else None
        return tuple(
            each
            for each in self._combinations
            if each not in self._sizes and each not in self._failed and (limit is None or each.cost < limit)
        )

    def contradictions(self) -> list[tuple[Combination, Combination]]:
        """Return the pairs whose first combination holds more than the second, though it was expected to hold less."""
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
        """Return the unmeasured, cheaper neighbours of the best combination, one in each family."""
        if self.best is None:
            return []
        next_cheaper: dict[int, Combination] = {}
        for each in self._combinations:  # cheapest first, so that the nearest one remains
            differences = each.differences(self.best)
            if len(differences) == 1 and each.cost < self.best.cost:
                next_cheaper[differences[0]] = each
        return [each for each in next_cheaper.values() if each not in self._sizes and each not in self._failed]

    def _doubted_families(self) -> frozenset[int]:
        return frozenset(number for one, other in self.contradictions() for number in one.differences(other))


def _kind(combination: Combination) -> tuple[bool, bool]:
    return combination.cost.changes_training, combination.cost.moves_to_host
