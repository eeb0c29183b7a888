"""What becomes of each argument of a step, by what its results are made from.

The program itself tells what is trained:

- parameters are read by what is differentiated, and a result of their shape is made from them directly and from
  gradients;
- optimizer state is updated with gradients in the same way, and the new parameters are made from it;
- averages of parameters (a target network, weights to evaluate with) are made from the new parameters, which are not
  made from them;
- what comes back in its own shape without gradients is state of another kind (batch statistics, counters).

It does not matter here whether the program is one that JAX has traced or one that XLA has compiled. Sets of argument
leaves are bits of an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Array(NamedTuple):
    """What an argument or a result is."""

    shape: tuple[int, ...]
    dtype: str


class Result(NamedTuple):
    """What one result of a step is made from.

    Attributes:
        directly: leaves that reach it through operations outside of differentiation alone.
        forward: leaves that reach it without passing through the backward pass and in one shape all the way.
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
    """What becomes of one argument leaf.

    Attributes:
        is_differentiated: what is differentiated reads it as it comes, or cast or reshaped.
        is_trained: a result of its shape and dtype is made from it and from gradients.
        is_average: parameters of its shape go into it, and it goes into no new parameters.
        is_carried: it has a next value: a result of its shape and dtype takes its place.
        is_kept: is carried, but not changed: it is returned as it is, or after a decay.
        is_same: it is returned as it is.
        is_differentiated_for: the step returns its gradient.
        is_parameter: is differentiated and trained, and is neither a moment nor an average of another leaf.
        is_accepted: a random draw decides whether its next value is the proposed one, as in a Metropolis test.
        enters_update: new parameters are made from it, now or in a later step.
        is_contained: its next value lies in the same container, or under the same name.
        is_in_place: is contained, or its next value stands at its own place among the results.
        keeps_elements: its elements flow into its next value.
        is_added_to: something is added to its elements, and their next values are the sums.
        is_made_from: the leaves that its next value is made from directly.
        is_key: random keys are made of it.
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
        """Whether it comes back, and not as it was."""
        return self.is_carried and not self.is_kept


def argument_uses(
    inputs: Sequence[Array], owners: Sequence[int], results: Sequence[Result], differentiated: int
) -> list[ArgumentUse]:
    """What becomes of each leaf.

    Args:
        inputs: the argument leaves.
        owners: the number of the argument that each leaf is a part of, in order.
        differentiated: the leaves that what is differentiated reads.
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
    """For each leaf the results that may be its new value: of its shape, made from it directly and from gradients."""
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
    """The leaves that new parameters go into, and that go into no new parameters."""
    # First who has the least to choose from, and what is made from the fewest leaves: moments before parameters.
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
    """The leaves of the first argument whose shapes are, one by one, those of the gradients that the step returns."""
    for owner in dict.fromkeys(owners):
        members = [n for n, each in enumerate(owners) if each == owner]
        if [inputs[n] for n in members] == list(gradients):
            return set(members)
    return set()
