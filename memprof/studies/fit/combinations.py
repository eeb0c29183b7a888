"""Combinations of techniques: what each costs, and which is expected to hold less memory than which.

Techniques of one kind make a family, of which a combination takes at most one. Two orders are known before anything is
measured. Costs are compared exactly: first whether the training is another one, then whether bytes go to the host, then
the operations that are computed again, then the effort. Memory is compared in part only: a combination holds less than
another where it does so in some families and is the same in the rest.

    families = (Family(name="structure", choices=(NOTHING, Choice(label="donate", level=1))), ...)
    combine(families)      # every combination of one choice from each
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product


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
        return "+".join(choice.label for choice in self.choices if choice.label)

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
