"""What a traced step does with each leaf of its arguments.

The program itself tells what is trained:

- parameters are read by what is differentiated, and a result of their shape is made from them directly and from
  gradients;
- optimizer state is updated with gradients in the same way, and the new parameters are made from it;
- averages of parameters (a target network, weights to evaluate with) are made from the new parameters, which are not
  made from them;
- what comes back in its own shape without gradients is state of another kind (batch statistics, counters).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.analysis.op_names import Named
from memprof.capture.roles.walk import Made, Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentUse:
    """What becomes of one argument leaf.

    Attributes:
        is_differentiated: what is differentiated reads it as it comes, or cast or reshaped.
        is_trained: a result of its shape and dtype is made from it and from gradients.
        is_average: is trained, from new parameters that are not made from it.
        is_carried: a result of its shape and dtype is made from it, element by element.
        is_kept: is carried, and no data changes it: it is returned as it is, or after a decay.
        is_differentiated_for: the step returns its gradient.
    """

    is_differentiated: bool
    is_trained: bool
    is_average: bool = False
    is_carried: bool = False
    is_kept: bool = False
    is_differentiated_for: bool = False


@dataclass(slots=True)
class Program:
    """A traced step, followed once.

    Attributes:
        invars: its inputs, one for each argument leaf.
        owners: the number of the argument that each leaf is a part of.
        uses: what becomes of each leaf.
        walk: what was seen on the way.
        inputs: the leaves as values.
    """

    invars: Sequence[Any]
    owners: Sequence[int]
    uses: list[ArgumentUse]
    walk: Walk
    inputs: list[Made]

    def leaves(self, bits: int) -> Iterator[int]:
        """The numbers of leaves in a set of bits."""
        return (number for number in range(len(self.invars)) if bits >> number & 1)


def follow(jaxpr: Any, owners: Sequence[int]) -> Program:
    """Follow the arguments through a step.

    Args:
        jaxpr: the `ClosedJaxpr` of the step.
        owners: the number of the argument that each leaf is a part of, in order.
    """
    walk = Walk()
    invars, outvars = jaxpr.jaxpr.invars, jaxpr.jaxpr.outvars
    inputs = walk.arguments(invars)
    results = list(zip(outvars, walk.follow(jaxpr.jaxpr, inputs, Named.UNPHASED), strict=True))
    back = [
        made.forward & bits_of({n for n, invar in enumerate(invars) if _alike(invar, outvar)})
        for outvar, made in results
    ]
    carried = joined_bits(back)
    kept = joined_bits(leaves for leaves, (_, made) in zip(back, results, strict=True) if not made.sources & ~carried)
    averages = _averages(invars, results, walk.differentiated)
    trained = bits_of({n for n, candidates in enumerate(_new_values(invars, results)) if candidates})
    for_gradients = _argument_like(
        [outvar for outvar, made in results if made.of_gradients and not made.directly], invars, owners
    )
    uses = [
        ArgumentUse(
            is_differentiated=bool(walk.differentiated >> n & 1),
            is_trained=bool(trained >> n & 1),
            is_average=n in averages,
            is_carried=bool(carried >> n & 1),
            is_kept=bool(kept >> n & 1),
            is_differentiated_for=n in for_gradients,
        )
        for n in range(len(invars))
    ]
    return Program(invars, owners, uses, walk, inputs)


_Results = Sequence[tuple[Any, Made]]


def _new_values(invars: Sequence[Any], results: _Results) -> list[list[int]]:
    """For each leaf the results that may be its new value: of its shape, made from it directly and from gradients."""
    return [
        [
            place
            for place, (outvar, made) in enumerate(results)
            if made.of_gradients and made.directly >> n & 1 and _alike(invar, outvar)
        ]
        for n, invar in enumerate(invars)
    ]


def _averages(invars: Sequence[Any], results: _Results, differentiated: int) -> set[int]:
    """The leaves that new parameters go into, and that go into no new parameters."""
    candidates = _new_values(invars, results)
    # First who has the least to choose from, and what is made from the fewest leaves: moments before parameters.
    order = sorted(
        (n for n, places in enumerate(candidates) if places and invars[n].aval.shape),
        key=lambda n: (bool(differentiated >> n & 1), len(candidates[n])),
    )
    own: dict[int, int] = {}
    taken: set[int] = set()
    for n in order:
        free = [place for place in candidates[n] if place not in taken] or candidates[n]
        own[n] = min(free, key=lambda place: results[place][1].directly.bit_count())
        taken.add(own[n])
    new = {n: results[place][1].directly for n, place in own.items()}
    parameters = [n for n in new if differentiated >> n & 1]

    def is_average_of(n: int, parameter: int) -> bool:
        return n != parameter and bool(new[n] >> parameter & 1) and not new[parameter] >> n & 1

    averages: set[int] = set()
    for n in new:
        influences = any(new[other] >> n & 1 for other in parameters if other != n)
        if not influences and any(is_average_of(n, parameter) for parameter in parameters):
            averages.add(n)
    return averages


def _alike(left: Any, right: Any) -> bool:
    return bool(left.aval.shape == right.aval.shape and left.aval.dtype == right.aval.dtype)


def _argument_like(gradients: Sequence[Any], invars: Sequence[Any], owners: Sequence[int]) -> set[int]:
    """The leaves of the first argument whose shapes are, one by one, those of the gradients that the step returns."""
    for owner in dict.fromkeys(owners):
        members = [n for n, each in enumerate(owners) if each == owner]
        if len(members) == len(gradients) and all(map(_alike, (invars[n] for n in members), gradients)):
            return set(members)
    return set()


def bits_of(numbers: set[int]) -> int:
    """A set of leaves as bits."""
    return sum(1 << number for number in numbers)


def joined_bits(sets: Iterable[int]) -> int:
    """All leaves of several sets."""
    return functools.reduce(operator.or_, sets, 0)
