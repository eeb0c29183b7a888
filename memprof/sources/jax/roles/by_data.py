"""The relation of each argument leaf to the parameters: data that they are applied to, or arrays along their axes.

Once the parameters are known, the program shows what it reads as data. Data axes are the axes that products with
parameters keep (`x @ w` keeps the first axis of `x`) and along which parameters are broadcast (`+ b`), unless a
parameter has them too. An array whose first axis is a data axis is part of a batch. Masks, permutations and feature
means lie along axes of parameters.

A step without gradients trains no parameters. For such a step, `applied` finds them by the values that they meet: a
layer's weights multiply values computed earlier from data and from other weights of the same argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from memprof.sources.jax.roles.by_use import Program, bits_of, joined_bits
from memprof.sources.jax.roles.walk import Kind, Meeting


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUse:
    """The relation of one argument leaf to the parameters.

    Attributes:
        has_batch_axis: parameters are applied along its first axis.
        is_along_parameters: a parameter has its first axis.
        is_weight: a matrix product applies it to data.
        is_scale: it multiplies parameters, or their gradients, element by element.
        is_statistic: it meets only data to which no parameter has been applied.
    """

    has_batch_axis: bool = False
    is_along_parameters: bool = False
    is_weight: bool = False
    is_scale: bool = False
    is_statistic: bool = False


def data_uses(program: Program, parameters: set[int], left: set[int]) -> list[DataUse]:
    """Return the relation of each leaf to the parameters.

    Args:
        parameters: numbers of the leaves that are parameters.
        left: numbers of the leaves with unknown roles.
    """
    return _DataUses(program, bits_of(parameters), bits_of(left)).all()


def applied(program: Program, left: set[int]) -> set[int]:
    """Return parameters of a step without gradients, found by the values that they meet; some may be missing."""
    return _Applied(program, bits_of(left)).all()


def applied_together(program: Program, left: set[int]) -> list[set[int]]:
    """Return the leaves of one argument that each product of such a step applies: a weight and its scales."""
    operands = dict.fromkeys(_Applied(program, bits_of(left)).operands())
    return [set(program.leaves(operand)) for operand in operands]


def looked_up(program: Program, left: set[int], parameters: set[int]) -> set[int]:
    """Return weights whose rows data selects and that multiply activations, such as one adapter among many."""
    return _Applied(program, bits_of(left)).looked_up(bits_of(parameters))


def numbers_looked_up(program: Program, left: set[int]) -> set[int]:
    """Return integers, and their scales, whose rows data selects and that become floats (not a table of indices)."""
    return _Applied(program, bits_of(left)).numbers_looked_up() & left


def ambiguous(program: Program, left: set[int]) -> set[int]:
    """Return leaves with ambiguous use: tables of rows, and both operands of a product if neither is known."""
    bits = bits_of(left)
    lookups, products = program.meetings(Kind.LOOKUP), program.meetings(Kind.PRODUCT)
    tables = joined_bits(meeting.left for meeting in lookups if meeting.right and meeting.left.bit_count() == 1)
    pairs = (m.left | m.right for m in products if m.left.bit_count() == m.right.bit_count() == 1)
    return set(program.leaves(tables & bits | joined_bits(pair for pair in pairs if not pair & ~bits)))


class _DataUses:
    """The data axes, and the relation of each leaf to them."""

    def __init__(self, program: Program, parameters: int, left: int) -> None:
        self._program = program
        self._walk = program.walk
        self._parameters, self._left = parameters, left
        self._products = program.meetings(Kind.PRODUCT)
        self._known: dict[int, bool] = {}
        of_parameters = [program.inputs[n].axes for n in program.leaves(parameters)]
        self._parameter_axes = self._walk.axes.found(number for axes in of_parameters for number in axes)
        self._population = self._population_axes(of_parameters)
        self._parameter_axes -= self._population
        self._data_axes = self._found_data_axes() - self._parameter_axes - self._population
        self._data = sum(1 << n for n in program.leaves(left) if self._has_batch_axis(n))

    def all(self) -> list[DataUse]:
        weights, scales = self._weights(), self._scales()
        statistics = self._statistics(weights)
        return [
            DataUse(
                has_batch_axis=bool(self._data >> n & 1),
                is_along_parameters=self._first_axis(n) in self._parameter_axes,
                is_weight=bool(weights >> n & 1) and not scales >> n & 1,
                is_scale=bool(scales >> n & 1),
                is_statistic=bool(statistics >> n & 1),
            )
            for n in range(len(self._program.invars))
        ]

    def _population_axes(self, of_parameters: list[tuple[int, ...]]) -> frozenset[int]:
        """Return the first axis that all parameters share if the step is mapped over several copies of a model."""
        firsts = {self._walk.axes.find(axes[0]) for axes in of_parameters if axes}
        if len(of_parameters) < 2 or len(firsts) != 1 or not all(of_parameters):
            return frozenset()
        others = self._walk.axes.found(number for axes in of_parameters for number in axes[1:])
        return frozenset(firsts) - others - self._walk.axes.summed() - {0}

    def _first_axis(self, n: int) -> int:
        numbers = [self._walk.axes.find(number) for number in self._program.inputs[n].axes]
        if len(numbers) > 1 and numbers[0] in self._population:
            return numbers[1]
        return numbers[0] if numbers else 0

    def _has_batch_axis(self, n: int) -> bool:
        """Whether the first axis is a data axis. If it has one element or is the only axis, products decide, too."""
        first = self._first_axis(n)
        if first in self._data_axes:
            return True
        if first and len(self._program.inputs[n].axes) > 1:
            return False
        axes = self._walk.axes.found(self._program.inputs[n].axes)
        return bool(axes & self._data_axes) or any(
            one == 1 << n and self._is_parameters(other) for one, other in _both_ways(self._products)
        )

    def _is_parameters(self, sources: int) -> bool:
        """Whether a value is made only from parameters and from arrays along their axes (masks, scales)."""
        if sources not in self._known:
            others = self._program.leaves(sources & ~self._parameters)
            along = self._parameter_axes | self._population
            self._known[sources] = bool(sources & self._parameters) and all(
                self._walk.axes.found(self._program.inputs[n].axes) <= along for n in others
            )
        return self._known[sources]

    def _found_data_axes(self) -> frozenset[int]:
        numbers: set[int] = set()
        for meeting in self._walk.meetings:
            is_left, is_right = self._is_parameters(meeting.left), self._is_parameters(meeting.right)
            if meeting.kind in (Kind.STRETCHED, Kind.LOOKUP) and is_left and not is_right:
                numbers.update(meeting.right_free)
            elif meeting.kind is Kind.PRODUCT and not meeting.is_backward_made and is_left != is_right:
                numbers.update(meeting.right_free if is_left else meeting.left_free)
        return self._walk.axes.found(numbers)

    def _weights(self) -> int:
        """Return leaves that a product applies to data and that have no data axes.

        A table whose rows data selects is excluded, because it may be weights or a data set. So is a leaf that also
        meets data element by element: points in a distance (`|x|^2 - 2 x @ y + |y|^2`), or times of a solver.
        """
        forward = (meeting for meeting in self._products if not meeting.is_backward_made)
        weights = joined_bits(one for one, other in _both_ways(forward) if not one & self._data and other & self._data)
        elementwise = joined_bits(
            each.left
            for each in self._program.meetings(Kind.SCALED, Kind.BESIDE)
            if not each.is_backward_made and each.right & self._data
        )
        return weights & self._left & ~self._data & ~elementwise

    def _scales(self) -> int:
        scales = 0
        for meeting in self._program.meetings(Kind.SCALED):
            if meeting.is_backward_made or self._is_parameters(meeting.right):
                scales |= meeting.left
        return scales & ~self._parameters

    def _statistics(self, weights: int) -> int:
        statistics = others = 0
        for meeting in self._program.meetings(Kind.SCALED, Kind.BESIDE):
            if meeting.right & self._data and not meeting.right & (self._parameters | weights):
                statistics |= meeting.left
            else:
                others |= meeting.left
        return statistics & ~others


class _Applied:
    """Parameters of a step without gradients: leaves that meet values made from data and from their own argument."""

    def __init__(self, program: Program, left: int) -> None:
        self._program = program
        self._products, self._lookups = program.meetings(Kind.PRODUCT), program.meetings(Kind.LOOKUP)
        self._left = left
        members: dict[int, int] = {}
        for n, owner in enumerate(program.owners):
            members[owner] = members.get(owner, 0) | 1 << n
        self._members = list(members.values())

    def all(self) -> set[int]:
        return self._leaves([*self.operands(), self._by_lookups(), self._with_biases()])

    def operands(self) -> list[int]:
        """Return the values of one argument that a product applies."""
        plain = (meeting for meeting in self._products if not meeting.is_along)
        return [one for one, other in _both_ways(plain) if self._is_of_one(one) and self._has_met_data(one, other)]

    def looked_up(self, parameters: int) -> set[int]:
        lookups = [each for each in self._lookups if self._is_of_one(each.left)]
        return self._leaves(
            lookup.left
            for lookup in lookups
            for one, other in _both_ways(self._products)
            if one == lookup.left | lookup.right and other & parameters and other & ~parameters & ~one
        )

    def numbers_looked_up(self) -> set[int]:
        numbers = [meeting.left for meeting in self._program.meetings(Kind.NUMBERS)]
        return self._leaves(
            lookup.left
            for lookup in self._lookups
            if lookup.right & ~self._siblings(lookup.left)
            if any(each & lookup.left and not each & ~(lookup.left | lookup.right) for each in numbers)
        )

    def _by_lookups(self) -> int:
        return joined_bits(
            each.left
            for each in self._lookups
            if self._is_of_one(each.left) and each.right and not each.right & self._siblings(each.left)
        )

    def _leaves(self, sets: Iterable[int]) -> set[int]:
        return set(self._program.leaves(joined_bits(sets)))

    def _with_biases(self) -> int:
        """Return biases broadcast along the result of a product or embedding, with the weights that made it."""
        in_products = self._by_lookups() | joined_bits(
            one for one, _ in _both_ways(self._products) if self._is_of_one(one)
        )
        stretched = joined_bits(
            each.left for each in self._program.meetings(Kind.STRETCHED) if each.left.bit_count() == 1
        )
        biases = 0
        for meeting in self._program.meetings(Kind.SCALED, Kind.BESIDE):
            if meeting.left & stretched & self._left:
                siblings = self._siblings(meeting.left)
                weights = siblings & in_products & meeting.right
                if weights and meeting.right & ~siblings:
                    biases |= meeting.left | weights
        return biases

    def _is_of_one(self, sources: int) -> bool:
        return bool(sources) and not sources & ~self._left and bool(self._siblings(sources))

    def _has_met_data(self, one: int, other: int) -> bool:
        """Whether a value is made from the argument of these leaves and also from another argument."""
        siblings = self._siblings(one)
        return not other & one and bool(other & siblings) and bool(other & ~siblings)

    def _siblings(self, sources: int) -> int:
        """Return all leaves of the argument that these belong to, or no leaves if they belong to several."""
        return next((members for members in self._members if not sources & ~members), 0)


def _both_ways(meetings: Iterable[Meeting]) -> Iterator[tuple[int, int]]:
    """Yield the two values of each meeting, in both orders."""
    for meeting in meetings:
        yield meeting.left, meeting.right
        yield meeting.right, meeting.left
