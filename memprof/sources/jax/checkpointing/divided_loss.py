"""A function that a step differentiates, divided along the examples of the arrays that it reads (see `division.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.rewrites import ExamplesInParts
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.actions import UndividedError, named
from memprof.sources.jax.checkpointing.apply import Differentiated, differentiated_by
from memprof.sources.jax.checkpointing.blocks import made_bytes
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.divided_calls import is_float
from memprof.sources.jax.checkpointing.division import Division, evaluated_whole, needed
from memprof.sources.jax.checkpointing.evaluation import as_function, without_jits
from memprof.sources.jax.checkpointing.pieces import Piece, State, Total, axis_of
from memprof.sources.jax.tracing import jit_adapter

LEAST_SHARE = 0.1  # of the bytes made whole: at least this much is made in parts
_MOST_STORED = 0.25  # of the bytes made in parts: what the rest of the function reads of them
_MAX_TRIES = 4  # candidate axes of the examples
_NUM_AXES = 2  # the examples lie along the first or the second axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A function that a step differentiates.

    Attributes:
        num_examples: the length of the axis that is divided; None if there is none.
        reason: the reason why it is not divided.
    """

    num_examples: int | None = None
    reason: str = ""


class DividedLoss(ABC):
    """A function that is computed in parts of the examples.

    Args:
        function: the function.
        rewrite: the number and the kind of the parts.

    Attributes:
        num_examples: the length of the axis that is divided.
        vjp: the function that differentiates it in place of `jax.vjp`.

    Raises:
        UndividedError: it cannot be divided.
    """

    def __init__(self, function: Differentiated, rewrite: ExamplesInParts) -> None:
        self.closed = without_jits(function.closed)
        self.jaxpr = self.closed.jaxpr
        self.vjp = function.vjp
        for equation in jit_adapter.all_equations(self.jaxpr):
            if not jit_adapter.has_no_side_effects(equation):
                raise UndividedError(f"{named(equation)} has side effects")
        self.floats = [number for number, var in enumerate(self.jaxpr.invars) if is_float(var)]
        self.num_examples, self._states, self.division = self._divided()
        num_shards = self._num_shards()
        numbers = range(1, rewrite.number + 1)
        self.num_parts = max(each for each in numbers if self.num_examples % (each * num_shards) == 0 or each == 1)
        if self.num_parts == 1:
            on_devices = f" on {num_shards} devices" if num_shards > 1 else ""
            raise UndividedError(f"{self.num_examples} examples{on_devices} have no parts of equal size")
        self._is_interleaved = rewrite.interleaved
        self.sums, self.rows = self.wanted(self.division)

    @abstractmethod
    def __call__(self, *args: Any) -> list[Any]:
        """Compute the function in parts."""

    def _divided(self) -> tuple[int, list[State], Division]:
        """Return the number of examples, the states of the constants and inputs, and the division."""
        jaxpr = self.jaxpr
        fixed = {*jaxpr.constvars, *(var for var in jaxpr.invars if not is_float(var))}
        constants = Constants()
        constants.add(self.closed)
        tries: list[tuple[int, list[State], Division]] = []
        for axis, length in _example_axes(jaxpr.constvars)[:_MAX_TRIES]:
            has_rows = [_length(var, axis) == length for var in jaxpr.constvars]
            states: list[State] = [*(axis if each else None for each in has_rows), *[None] * len(jaxpr.invars)]
            tries.append((length, states, Division(jaxpr, states, length, fixed=fixed, constants=constants)))
        if not tries:
            raise UndividedError("it reads no array with several examples, besides those that are differentiated")
        tries.sort(key=lambda each: -each[2].divided_bytes)
        reasons = [self.refusal(division) for _, _, division in tries]
        if all(reasons):
            raise UndividedError(reasons[0])
        return tries[reasons.index("")]

    def _num_shards(self) -> int:
        """Return the number of parts into which an explicit mesh divides the examples: each device takes its own."""
        states = zip(self.jaxpr.constvars, self._states, strict=False)
        return max(jit_adapter.num_shards(var, axis) for var, axis in states if isinstance(axis, int))

    def piece(self, index: Any) -> Piece:
        """Return one part of the examples."""
        num_rows, is_interleaved = self.num_examples, self._is_interleaved
        return Piece(index=index, num_parts=self.num_parts, num_rows=num_rows, is_interleaved=is_interleaved)

    def known(self, args: Sequence[Any]) -> dict[Any, Any]:
        """Return the values of the function's constants and inputs."""
        return dict(zip([*self.jaxpr.constvars, *self.jaxpr.invars], [*self.closed.consts, *args], strict=True))

    def part(self, args: Sequence[Any], wanted: Sequence[Any]) -> Callable[..., list[Any]]:
        """Return a function that computes variables for a part, from its number and the differentiated inputs."""
        outside_values = evaluated_whole(self.jaxpr, self.division.outside, self.known(args))
        outside = dict(zip(self.division.outside, outside_values, strict=True))

        def of_part(index: Any, *floats: Any) -> list[Any]:
            piece, given = self.piece(index), [*args]
            for number, value in zip(self.floats, floats, strict=True):
                given[number] = value
            values = zip([*self.closed.consts, *given], self._states, strict=True)
            inputs = [piece.taken(value, None, state) for value, state in values]
            return self.division.part(inputs, piece, wanted, outside)

        return of_part

    def refusal(self, division: Division) -> str:
        """Return why parts would save little; empty if they save much."""
        if division.divided_bytes < max(LEAST_SHARE * division.whole_bytes, 1):
            return next(iter(division.reasons.values()), "it does not depend on the examples")
        sums, rows = self.wanted(division)
        is_large = made_bytes([*sums, *rows]) > _MOST_STORED * division.divided_bytes
        return "its examples mix too early" if is_large else ""

    def looped(self, args: Sequence[Any], part: Callable[..., list[Any]]) -> list[Any]:
        """Return the results of the function from a loop over the parts, which adds up their sums.

        Args:
            part: computes the sums and the rows of a part.
        """
        floats = [args[number] for number in self.floats]

        def add(totals: list[Any], index: Any) -> tuple[list[Any], list[Any]]:
            found = part(index, *floats)
            shares = found[: len(self.sums)]
            added = [total + share.astype(total.dtype) for total, share in zip(totals, shares, strict=True)]
            return added, found[len(self.sums) :]

        totals, parts = jax.lax.scan(add, self.zero_sums(), jnp.arange(self.num_parts))
        return self.whole(args, totals, parts)

    def zero_sums(self) -> list[Any]:
        """Return zeros for the sums over all examples, in the dtypes in which they are added up."""
        zeros = map(jit_adapter.zeros_of, self.sums)
        return [each.astype(sum_dtype(each.dtype)) for each in zeros]

    def whole(self, args: Sequence[Any], sums: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
        """Return the results, from the sums and the stacked rows of all parts."""
        known, piece = self.known(args), self.piece(0)
        known.update((var, each.astype(var.aval.dtype)) for var, each in zip(self.sums, sums, strict=True))
        known.update(
            (var, piece.joined(part, state)) for (var, state), part in zip(self.rows.items(), parts, strict=True)
        )
        return evaluated_whole(self.jaxpr, self.jaxpr.outvars, known)

    def wanted(self, division: Division) -> tuple[list[Any], dict[Any, State]]:
        """Return the sums, and the arrays of rows with their states, that are results or that later equations read."""
        jaxpr, state = self.jaxpr, division.state
        made = [var for each in jaxpr.eqns for var in each.outvars if state(var) is not Total.LATER]
        parts = {var for var in made if state(var) is not None}
        later = [atom for atom in jaxpr.outvars if state(atom) is Total.LATER]
        numbers = needed(jaxpr, later, parts, among=range(len(jaxpr.eqns)))
        read = [*jaxpr.outvars, *(atom for number in numbers for atom in jaxpr.eqns[number].invars)]
        states = {atom: state(atom) for atom in read if isinstance(atom, core.Var)}
        rows = {var: each for var, each in states.items() if axis_of(each) is not None and var not in jaxpr.constvars}
        return [var for var, each in states.items() if each is Total.SUM], rows


def sum_dtype(dtype: Any) -> Any:
    """Return the dtype in which arrays of a dtype are added up: of at least 32 bits for floats."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else dtype


@contextmanager
def losses_divided(divide: Callable[[Differentiated], DividedLoss], parts: str) -> Iterator[list[Loss]]:
    """Divide all functions that are differentiated within a `with` block and can be divided.

    Args:
        parts: names the parts in an error.

    Yields:
        The functions.

    Raises:
        MemprofError: no function can be divided.
    """
    found: list[Loss] = []

    def divided(function: Differentiated) -> tuple[Callable[..., Any], Callable[..., list[Any]]]:
        try:
            loss = divide(function)
        except UndividedError as error:
            found.append(Loss(reason=str(error)))
            return function.vjp, as_function(without_jits(function.closed))
        found.append(Loss(num_examples=loss.num_examples))
        return loss.vjp, loss

    with differentiated_by(divided):
        yield found
    if all(each.num_examples is None for each in found):
        reasons = "; ".join(dict.fromkeys(each.reason for each in found)) or "the step differentiates nothing"
        raise MemprofError(f"the loss cannot be divided into {parts}: {reasons}")


def _example_axes(variables: Sequence[Any]) -> list[tuple[int, int]]:
    """Return candidate axes of the examples and their lengths; for each axis, the length with the most bytes first."""
    sizes: dict[tuple[int, int], int] = {}
    for axis in range(_NUM_AXES):
        for var in variables:
            length = _length(var, axis)
            if length is not None and length > 1:
                sizes[axis, length] = sizes.get((axis, length), 0) + var.aval.size * var.aval.dtype.itemsize
    return sorted(sizes, key=lambda each: (each[0], -sizes[each]))


def _length(var: Any, axis: int) -> int | None:
    return var.aval.shape[axis] if axis < var.aval.ndim else None
