"""What a traced step does with each leaf of its arguments.

The program itself tells what is trained:

- parameters are read by what is differentiated, and a result of their shape is made from them directly and from
  gradients;
- optimizer state is updated with gradients in the same way, and the new parameters are made from it;
- averages of parameters (a target network, weights to evaluate with) are made from the new parameters, which are not
  made from them;
- what comes back in its own shape without gradients is state of another kind (batch statistics, counters).

With the parameters known, it tells what is read as data. The axes that products with parameters leave as they are
(`x @ w` leaves the first one of `x`) and along which parameters are repeated (`+ b`) are those of the data, unless a
parameter has them too: arrays whose first axis is one of them are a batch. Masks, permutations and means of features
lie along axes of parameters.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from memprof.analysis.op_names import Named
from memprof.capture.roles.walk import Kind, Made, Walk


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUse:
    """What one argument leaf is to the parameters.

    Attributes:
        has_batch_axis: its first axis is one that parameters are applied along.
        is_along_parameters: its first axis is one of a parameter.
        is_weight: a matrix product applies it to data, or data says which of its rows to take.
        is_scale: it multiplies parameters, or their gradients, element by element.
        is_statistic: it meets nothing but data that no parameter has been applied to.
    """

    has_batch_axis: bool = False
    is_along_parameters: bool = False
    is_weight: bool = False
    is_scale: bool = False
    is_statistic: bool = False


@dataclass(slots=True)
class Program:
    """A traced step, followed once.

    Attributes:
        invars: its inputs, one for each argument leaf.
        owners: the number of the argument that each leaf is a part of.
    """

    invars: Sequence[Any]
    owners: Sequence[int]
    uses: list[ArgumentUse]
    _walk: Walk = field(repr=False)
    _inputs: list[Made] = field(repr=False)

    def data_uses(self, parameters: set[int], left: set[int]) -> list[DataUse]:
        """What each leaf is to the parameters.

        Args:
            parameters: numbers of the leaves that are parameters.
            left: those of which it is not known what they are.
        """
        return _DataUses(self, _bits(parameters), _bits(left)).all()

    def seeds(self, left: set[int]) -> set[int]:
        """Leaves that are parameters of a step without gradients, by what they meet; not all of them."""
        return _Seeds(self, _bits(left)).all()

    def lone_products(self, left: set[int]) -> set[int]:
        """Leaves that a product applies to one another, neither of which is known."""
        bits = _bits(left)
        products = (meeting for meeting in self._walk.meetings if meeting.kind is Kind.PRODUCT)
        pairs = (m.left | m.right for m in products if m.left.bit_count() == m.right.bit_count() == 1)
        return {n for pair in pairs if not pair & ~bits for n in self.leaves(pair)}

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
        made.forward & _bits({n for n, invar in enumerate(invars) if _alike(invar, outvar)}) for outvar, made in results
    ]
    carried = _joined_bits(back)
    kept = _joined_bits(leaves for leaves, (_, made) in zip(back, results, strict=True) if not made.sources & ~carried)
    averages = _averages(invars, results, walk.differentiated)
    trained = _bits({n for n, candidates in enumerate(_new_values(invars, results)) if candidates})
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


def _argument_like(gradients: Sequence[Any], invars: Sequence[Any], owners: Sequence[int]) -> range:
    """The leaves of the first argument whose shapes are, one by one, those of the gradients that the step returns."""
    for owner in dict.fromkeys(owners):
        first, count = owners.index(owner), owners.count(owner)
        leaves = invars[first : first + count]
        if count == len(gradients) and all(map(_alike, leaves, gradients)):
            return range(first, first + count)
    return range(0)


def _bits(numbers: set[int]) -> int:
    return sum(1 << number for number in numbers)


def _joined_bits(sets: Iterable[int]) -> int:
    return functools.reduce(operator.or_, sets, 0)


class _DataUses:
    """The axes of the data, and what that makes of each leaf."""

    def __init__(self, program: Program, parameters: int, left: int) -> None:
        self._program = program
        self._walk = program._walk
        self._parameters, self._left = parameters, left
        of_parameters = [program._inputs[n].axes for n in program.leaves(parameters)]
        self._parameter_axes = self._walk.axes.found(number for axes in of_parameters for number in axes)
        self._population = self._population_axes(of_parameters)
        self._parameter_axes -= self._population
        self._data_axes = self._found_data_axes() - self._parameter_axes - self._population
        self._tables = _bits({n for n, invar in enumerate(program.invars) if len(invar.aval.shape) > 1})
        self._data = sum(1 << n for n in program.leaves(left) if self._has_batch_axis(n))

    def all(self) -> list[DataUse]:
        weights = self._weights()
        scales = self._scales()
        return [
            DataUse(
                has_batch_axis=bool(self._data >> n & 1),
                is_along_parameters=self._first_axis(n) in self._parameter_axes,
                is_weight=bool(weights >> n & 1) and not scales >> n & 1,
                is_scale=bool(scales >> n & 1),
                is_statistic=self._is_statistic(n, weights),
            )
            for n in range(len(self._program.invars))
        ]

    def _population_axes(self, of_parameters: list[tuple[int, ...]]) -> frozenset[int]:
        """The first axis of all parameters alike, where a whole step is mapped over several copies of a model."""
        firsts = {self._walk.axes.find(axes[0]) for axes in of_parameters if axes}
        if len(of_parameters) < 2 or len(firsts) != 1 or not all(of_parameters):
            return frozenset()
        others = self._walk.axes.found(number for axes in of_parameters for number in axes[1:])
        return frozenset(firsts) - others - self._walk.axes.summed() - {0}

    def _first_axis(self, n: int) -> int:
        numbers = [self._walk.axes.find(number) for number in self._program._inputs[n].axes]
        if len(numbers) > 1 and numbers[0] in self._population:
            return numbers[1]
        return numbers[0] if numbers else 0

    def _has_batch_axis(self, n: int) -> bool:
        """By its first axis, or by any, and being multiplied with a parameter, where the first has one element."""
        first = self._first_axis(n)
        if first:
            return first in self._data_axes
        axes = self._walk.axes.found(self._program._inputs[n].axes)
        return bool(axes & self._data_axes) or any(
            meeting.kind is Kind.PRODUCT
            and (
                (meeting.left == 1 << n and self._is_parameters(meeting.right))
                or (meeting.right == 1 << n and self._is_parameters(meeting.left))
            )
            for meeting in self._walk.meetings
        )

    def _is_parameters(self, sources: int) -> bool:
        """Whether a value is made from parameters, and from nothing else but what lies along them (masks, scales)."""
        if not sources & self._parameters:
            return False
        others = self._program.leaves(sources & ~self._parameters)
        return all(
            self._walk.axes.found(self._program._inputs[n].axes) <= self._parameter_axes | self._population
            for n in others
        )

    def _found_data_axes(self) -> frozenset[int]:
        numbers: set[int] = set()
        for meeting in self._walk.meetings:
            is_left, is_right = self._is_parameters(meeting.left), self._is_parameters(meeting.right)
            if meeting.kind is Kind.STRETCHED and is_left:
                numbers.update(meeting.right_free)
            elif meeting.kind is Kind.LOOKUP and is_left and not is_right:
                numbers.update(meeting.right_free)
            elif meeting.kind is Kind.PRODUCT and not meeting.is_backward_made and is_left != is_right:
                numbers.update(meeting.right_free if is_left else meeting.left_free)
        return self._walk.axes.found(numbers)

    def _weights(self) -> int:
        """Leaves on the one side of a product whose other side comes from data; not those that have its axes."""
        weights = 0
        for meeting in self._walk.meetings:
            if meeting.kind not in (Kind.PRODUCT, Kind.LOOKUP) or meeting.is_backward_made:
                continue
            sides = [(meeting.left, meeting.right)]
            if meeting.kind is Kind.PRODUCT:
                sides.append((meeting.right, meeting.left))
            for one, other in sides:
                if not one & self._data and other & self._data:
                    weights |= one if meeting.kind is Kind.PRODUCT else one & self._tables
        return weights & self._left & ~self._data

    def _scales(self) -> int:
        scales = 0
        for meeting in self._walk.meetings:
            if meeting.kind is Kind.SCALED and (meeting.is_backward_made or self._is_parameters(meeting.right)):
                scales |= meeting.left
        return scales & ~self._parameters

    def _is_statistic(self, n: int, weights: int) -> bool:
        met = [m.right for m in self._walk.meetings if m.left == 1 << n and m.kind in (Kind.SCALED, Kind.BESIDE)]
        return bool(met) and all(right & self._data and not right & (self._parameters | weights) for right in met)


class _Seeds:
    """Parameters of a step without gradients: what meets values that data and their own argument have made."""

    def __init__(self, program: Program, left: int) -> None:
        self._program = program
        self._meetings = program._walk.meetings
        self._left = left

    def all(self) -> set[int]:
        in_products = 0
        seeds = 0
        stretched = sum(
            {
                meeting.left
                for meeting in self._meetings
                if meeting.kind is Kind.STRETCHED and meeting.left.bit_count() == 1
            }
        )
        for meeting in self._meetings:
            if meeting.kind is Kind.PRODUCT:
                for one, other in ((meeting.left, meeting.right), (meeting.right, meeting.left)):
                    if self._is_of_one(one):
                        in_products |= one
                        if not meeting.is_along and self._has_met_data(one, other):
                            seeds |= one
            elif meeting.kind is Kind.LOOKUP and self._is_of_one(meeting.left):
                if meeting.right and not meeting.right & self._siblings(meeting.left):
                    seeds |= meeting.left
        for meeting in self._meetings:
            if meeting.kind in (Kind.SCALED, Kind.BESIDE) and meeting.left & stretched & self._left:
                siblings = self._siblings(meeting.left) & in_products
                if siblings & meeting.right and meeting.right & ~self._siblings(meeting.left):
                    seeds |= meeting.left | siblings & meeting.right
        return set(self._program.leaves(seeds))

    def _is_of_one(self, sources: int) -> bool:
        return bool(sources) and not sources & ~self._left and not sources & ~self._siblings(sources)

    def _has_met_data(self, one: int, other: int) -> bool:
        """Whether a value is made both from the argument of these leaves and from another one."""
        siblings = self._siblings(one)
        return not other & one and bool(other & siblings) and bool(other & ~siblings)

    def _siblings(self, sources: int) -> int:
        """All leaves of the argument of the first of these."""
        owner = next((self._program.owners[n] for n in self._program.leaves(sources)), None)
        return _bits({n for n, each in enumerate(self._program.owners) if each == owner})
