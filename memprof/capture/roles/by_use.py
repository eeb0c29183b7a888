"""What a traced step does with each leaf of its arguments."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.analysis.attribution.op_names import Named
from memprof.capture.roles.updates import ArgumentUse, Array, Result, argument_uses
from memprof.capture.roles.walk import Made, Walk


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
    results = [
        Result(_array(outvar), made.directly, made.forward, made.sources, made.of_gradients)
        for outvar, made in zip(outvars, walk.follow(jaxpr.jaxpr, inputs, Named.UNPHASED), strict=True)
    ]
    uses = argument_uses([*map(_array, invars)], owners, results, walk.differentiated)
    return Program(invars, owners, uses, walk, inputs)


def _array(variable: Any) -> Array:
    return Array(tuple(variable.aval.shape), str(variable.aval.dtype))


def bits_of(numbers: set[int]) -> int:
    """A set of leaves as bits."""
    return sum(1 << number for number in numbers)


def joined_bits(sets: Iterable[int]) -> int:
    """All leaves of several sets."""
    return functools.reduce(operator.or_, sets, 0)
