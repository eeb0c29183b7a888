"""The uses of each argument leaf in a traced step.

The step is followed twice. The first pass finds the parameters: differentiated operations read them, and their next
values are made from them and from gradients. In the second pass each new parameter stands for itself. So only the
update of a parameter counts as made from its gradient; values computed from the new parameter do not.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from memprof.analysis.attribution.op_names import Named
from memprof.sources.jax.roles.comes_back import Ends, Evidence, NextValue, StepEnds, next_values
from memprof.sources.jax.roles.updates import ArgumentUse, Array, argument_like
from memprof.sources.jax.roles.walk import Kind, Made, Meeting, Walk


@dataclass(slots=True)
class Program:
    """A traced step, followed to its end.

    Attributes:
        invars: its inputs, one for each argument leaf.
        owners: the number of the argument that each leaf belongs to.
        uses: the uses of each leaf.
        walk: the observations of the last pass.
        inputs: the leaves as values.
    """

    invars: Sequence[Any]
    owners: Sequence[int]
    uses: list[ArgumentUse]
    walk: Walk
    inputs: list[Made]

    @property
    def is_training(self) -> bool:
        """Whether the step updates parameters with their gradients, or returns the gradients."""
        return any(use.is_parameter or use.is_differentiated_for for use in self.uses)

    def meetings(self, *kinds: Kind) -> list[Meeting]:
        """Return the meetings of some kinds."""
        return [meeting for meeting in self.walk.meetings if meeting.kind in kinds]

    def leaves(self, bits: int) -> Iterator[int]:
        """Return the numbers of the leaves in a bit set."""
        return (number for number in range(len(self.invars)) if bits >> number & 1)


def follow(jaxpr: Any, ends: StepEnds) -> Program:
    """Follow the arguments through a step.

    Args:
        jaxpr: the `ClosedJaxpr` of the step.
    """
    jaxpr = jaxpr.jaxpr
    first = _Pass(jaxpr, ends, {})
    parameters = first.parameters()
    new = {value.result: n for n in first.leaves(parameters) if (value := first.next[n]) is not None}
    last = _Pass(jaxpr, ends, new) if new else first
    return Program(jaxpr.invars, ends.owners, last.uses(), last.walk, last.inputs)


class _Pass:
    """One pass, and the facts about leaves that it finds. Sets of leaves are bits."""

    def __init__(self, jaxpr: Any, ends: StepEnds, new: Mapping[int, int]) -> None:
        self._ends = ends
        self.walk = Walk()
        self.inputs = self.walk.arguments(jaxpr.invars)
        self._results = self.walk.follow(jaxpr, self.inputs, Named.UNPHASED, new)
        # The place where a parameter comes back was decided by the pass that saw its update.
        for result, number in new.items():
            self._results[result] = self.walk.updated.get(number, self._results[result])
        self._arrays, self._result_arrays = [*map(_array, jaxpr.invars)], [*map(_array, jaxpr.outvars)]
        self.next = next_values(
            Ends(paths=ends.arguments, arrays=self._arrays, made=self.inputs),
            Ends(paths=ends.results, arrays=self._result_arrays, made=self._results),
            step=ends,
            differentiated=self.walk.differentiated,
        )
        self._made = [None if value is None else self._results[value.result] for value in self.next]
        self.trained = self._where(lambda n, made: made.of_gradients and bool(made.directly >> n & 1))

    def _where(self, is_so: Callable[[int, Made], bool]) -> int:
        return bits_of({n for n, made in enumerate(self._made) if made is not None and is_so(n, made)})

    def leaves(self, bits: int) -> list[int]:
        return [n for n in range(len(self.inputs)) if bits >> n & 1]

    def parameters(self) -> int:
        """Return leaves that are differentiated and trained, and are neither moments nor averages of others."""
        floats = bits_of({n for n, array in enumerate(self._arrays) if _is_float(array)})
        found = self.trained & self.walk.differentiated & floats & ~bits_of(self._ends.states)
        found &= ~self._moments(found) & ~self.accepted()
        return found & ~self.averages(found)

    def accepted(self) -> int:
        """Return leaves whose next value a random draw chooses: the positions of a sampler."""
        return self._where(lambda n, made: bool(made.accepted >> n & 1))

    def _moments(self, trained: int) -> int:
        """Return leaves read only together with another leaf whose update they enter: a look-ahead velocity."""
        together = trained & ~self.walk.differentiated_alone
        return joined_bits(
            1 << n for n in self.leaves(together) if any(self._enters(n, other) for other in self.leaves(trained))
        )

    def _enters(self, n: int, other: int) -> bool:
        """Whether a leaf enters the update of another one, but not the reverse."""
        own, its = self._made[n], self._made[other]
        if n == other or own is None or its is None:
            return False
        return bool(its.directly >> n & 1) and not own.directly >> other & 1

    def averages(self, parameters: int) -> int:
        """Return leaves that parameters of their shape enter, and that enter no new parameters."""
        alike: dict[Array, int] = {}
        entered = 0
        for n in self.leaves(parameters):
            alike[self._arrays[n]] = alike.get(self._arrays[n], 0) | 1 << n
            made = self._made[n]
            entered |= 0 if made is None else made.directly & ~(1 << n)
        return ~entered & self._where(
            lambda n, made: (
                bool(self._arrays[n].shape) and bool(made.directly & alike.get(self._arrays[n], 0) & ~(1 << n))
            )
        )

    def _entering(self, parameters: int) -> int:
        """Return leaves that enter the update of parameters now, or in a later step through other carried leaves."""
        entering, pending = 0, parameters
        while pending:
            reached = joined_bits(made.directly for n in self.leaves(pending) if (made := self._made[n]) is not None)
            pending = reached & ~entering & ~parameters
            entering |= pending
        return entering

    def uses(self) -> list[ArgumentUse]:
        parameters, accepted = self.parameters(), self.accepted()
        averages, entering = self.averages(parameters), self._entering(parameters)
        gradients = [
            array
            for array, made in zip(self._result_arrays, self._results, strict=True)
            if made.of_gradients and not made.directly
        ]
        returned = self._returned_gradients() if not parameters else set()
        if not parameters and not returned:
            returned = argument_like(gradients, self._arrays, self._ends.owners)
        return [
            ArgumentUse(
                is_differentiated=bool(self.walk.differentiated >> n & 1),
                is_trained=bool(self.trained >> n & 1),
                is_parameter=bool(parameters >> n & 1),
                is_average=bool(averages >> n & 1),
                is_accepted=bool(accepted >> n & 1),
                enters_update=bool(entering >> n & 1),
                is_carried=value is not None and n not in returned,
                is_kept=made is not None and self._is_kept(n, made),
                is_same=made is not None and made.itself == 1 << n,
                is_contained=self._is_contained(value),
                is_in_place=value is not None and value.evidence is not Evidence.ELEMENTS,
                keeps_elements=made is not None and bool(made.lineage >> n & 1),
                is_added_to=made is not None and bool(made.added >> n & 1),
                is_made_from=0 if made is None else made.directly,
                is_differentiated_for=n in returned,
                is_key=bool(self.walk.keys >> n & 1),
            )
            for n, (value, made) in enumerate(zip(self.next, self._made, strict=True))
        ]

    def _returned_gradients(self) -> set[int]:
        """Return leaves in whose shape the step returns a value made by the backward pass alone."""
        return {
            n
            for n, made in enumerate(self._made)
            if made is not None
            and made.of_gradients
            and not made.directly
            and self._is_contained(self.next[n])
            and self.walk.differentiated >> n & 1
        }

    @staticmethod
    def _is_contained(value: NextValue | None) -> bool:
        return value is not None and value.evidence is Evidence.CONTAINER

    def _is_kept(self, n: int, made: Made) -> bool:
        """Whether a leaf is returned unchanged, or only decays."""
        if made.itself:
            return made.itself == 1 << n
        is_of_itself = not (made.sources | made.directly) & ~(1 << n) and not made.is_random
        return is_of_itself and _is_float(self._arrays[n])


def _array(variable: Any) -> Array:
    return Array(tuple(variable.aval.shape), str(variable.aval.dtype))


def _is_float(array: Array) -> bool:
    return array.dtype.startswith(("float", "bfloat", "complex"))


def bits_of(numbers: Set[int]) -> int:
    """Return a set of leaves as bits."""
    return sum(1 << number for number in numbers)


def joined_bits(sets: Iterable[int]) -> int:
    """Return the union of several sets of leaves."""
    return functools.reduce(operator.or_, sets, 0)
