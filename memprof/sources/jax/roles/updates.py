"""The uses of each argument of a step, derived from the origins of its results.

The program itself shows what it trains:

- parameters are read by differentiated operations, and a result of their shape is made from them directly and from
  gradients;
- optimizer state is updated with gradients in the same way, and the new parameters are made from it;
- averages of parameters (a target network, evaluation weights) are made from the new parameters, but not the reverse;
- leaves that come back in their own shape without gradients are other state (batch statistics, counters).

The rules are the same for programs traced by JAX and for programs compiled by XLA. Sets of argument leaves are bits of
an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Array(NamedTuple):
    """The shape and dtype of an argument or a result."""

    shape: tuple[int, ...]
    dtype: str


class Result(NamedTuple):
    """The origins of one result of a step.

    Attributes:
        directly: leaves that reach it only through operations outside differentiation.
        forward: leaves that reach it without the backward pass and without a change of shape.
        sources: arrays that it depends on in any way; keys and scalars do not count.
        of_gradients: an operation of the backward pass lies upstream.
    """

    array: Array
    directly: int
    forward: int
    sources: int
    of_gradients: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentUse:
    """The uses of one argument leaf.

    Attributes:
        is_differentiated: differentiated operations read it unchanged, cast or reshaped.
        is_trained: a result of its shape and dtype is made from it and from gradients.
        is_average: parameters of its shape enter it, and it enters no new parameters.
        is_carried: it has a next value: a result of its shape and dtype replaces it.
        is_kept: it is carried, but returned unchanged or only decayed.
        is_same: it is returned unchanged.
        is_differentiated_for: the step returns its gradient.
        is_parameter: it is differentiated and trained, and is neither a moment nor an average of another leaf.
        is_accepted: a random draw decides whether its next value is the proposed one, as in a Metropolis test.
        enters_update: new parameters are made from it, now or in a later step.
        is_contained: its next value lies in the same container, or has the same name.
        is_in_place: it is contained, or its next value has its own position among the results.
        keeps_elements: its elements flow into its next value.
        is_added_to: its next value is its elements plus something.
        is_made_from: the leaves that its next value is made from directly.
        is_key: random keys are made from it.
    """

    is_differentiated: bool
    is_trained: bool
    is_average: bool = False
    is_carried: bool = False
    is_kept: bool = False
    is_same: bool = False
    is_differentiated_for: bool = False
    is_parameter: bool = False
    is_accepted: bool = False
    enters_update: bool = False
    is_contained: bool = False
    is_in_place: bool = False
    keeps_elements: bool = False
    is_added_to: bool = False
    is_made_from: int = 0
    is_key: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether it comes back changed."""
        return self.is_carried and not self.is_kept


def argument_uses(
    inputs: Sequence[Array], owners: Sequence[int], results: Sequence[Result], differentiated: int
) -> list[ArgumentUse]:
    """Return the uses of each leaf.

    Args:
        inputs: the argument leaves.
        owners: the number of the argument that each leaf belongs to, in order.
        differentiated: the leaves that differentiated operations read, as bits.
    """
    numbers: dict[Array, int] = {}
    for n, array in enumerate(inputs):
        numbers[array] = numbers.get(array, 0) | 1 << n
    back = [result.forward & numbers.get(result.array, 0) for result in results]
    carried = kept = trained = 0
    for leaves in back:
        carried |= leaves
    for leaves, result in zip(back, results, strict=True):
        is_of_itself = leaves.bit_count() == 1 and not result.sources & ~leaves
        kept |= leaves if is_of_itself else 0
    candidates = _new_values(inputs, results)
    averages = _averages(inputs, results, candidates, differentiated)
    for n, places in enumerate(candidates):
        trained |= bool(places) << n
    gradients = [result.array for result in results if result.of_gradients and not result.directly]
    for_gradients = argument_like(gradients, inputs, owners)
    return [
        ArgumentUse(
            is_differentiated=bool(differentiated >> n & 1),
            is_trained=bool(trained >> n & 1),
            is_average=n in averages,
            is_carried=bool(carried >> n & 1),
            is_kept=bool(kept >> n & 1),
            is_differentiated_for=n in for_gradients,
        )
        for n in range(len(inputs))
    ]


def _new_values(inputs: Sequence[Array], results: Sequence[Result]) -> list[list[int]]:
    """Return candidate new values of each leaf: results of its shape, made from it directly and from gradients."""
    places: dict[Array, list[int]] = {}
    for place, result in enumerate(results):
        if result.of_gradients:
            places.setdefault(result.array, []).append(place)
    return [
        [place for place in places.get(array, ()) if results[place].directly >> n & 1] for n, array in enumerate(inputs)
    ]


def _averages(
    inputs: Sequence[Array], results: Sequence[Result], candidates: Sequence[Sequence[int]], differentiated: int
) -> set[int]:
    """Return the leaves that new parameters enter, and that enter no new parameters."""
    # Leaves with the fewest candidates choose first, and take the result made from the fewest leaves. So moments come
    # before parameters.
    order = sorted(
        (n for n, places in enumerate(candidates) if places and inputs[n].shape),
        key=lambda n: (bool(differentiated >> n & 1), len(candidates[n])),
    )
    own: dict[int, int] = {}
    taken: set[int] = set()
    for n in order:
        free = [place for place in candidates[n] if place not in taken] or candidates[n]
        own[n] = min(free, key=lambda place: results[place].directly.bit_count())
        taken.add(own[n])
    new = {n: results[place].directly for n, place in own.items()}
    parameters = [n for n in new if differentiated >> n & 1]

    def is_average_of(n: int, parameter: int) -> bool:
        return n != parameter and bool(new[n] >> parameter & 1) and not new[parameter] >> n & 1

    averages: set[int] = set()
    for n in new:
        influences = any(new[other] >> n & 1 for other in parameters if other != n)
        if not influences and any(is_average_of(n, parameter) for parameter in parameters):
            averages.add(n)
    return averages


def argument_like(gradients: Sequence[Array], inputs: Sequence[Array], owners: Sequence[int]) -> set[int]:
    """Return the leaves of the first argument whose shapes and dtypes equal the returned gradients', one by one."""
    for owner in dict.fromkeys(owners):
        members = [n for n, each in enumerate(owners) if each == owner]
        if [inputs[n] for n in members] == list(gradients):
            return set(members)
    return set()
