"""Gradients accumulated over minibatches, in an unmodified step.

The loss that a step differentiates is divided along the examples of the arrays that it reads (see `division.py`). A
loop computes the loss and the gradients of one minibatch after another and adds them up, so only one minibatch's
activations exist at a time. Nothing is recomputed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.rewrites import InMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.actions import UndividedError, named
from memprof.sources.jax.checkpointing.apply import Differentiated, differentiated_by
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.divided_calls import is_float
from memprof.sources.jax.checkpointing.division import Division, evaluated_whole, needed
from memprof.sources.jax.checkpointing.evaluation import Flat, as_function, without_jits
from memprof.sources.jax.checkpointing.pieces import Piece, State, Total
from memprof.sources.jax.tracing import jit_adapter

_MAX_TRIES = 4  # candidate axes of the examples
_LEAST_SHARE = 0.1  # of the bytes made whole: at least this much is made in parts
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


@contextmanager
def in_minibatches(rewrite: InMinibatches) -> Iterator[list[Loss]]:
    """Accumulate the gradients of all functions that are differentiated within a `with` block and can be divided.

    Yields:
        The functions.

    Raises:
        MemprofError: no function can be divided.
    """
    found: list[Loss] = []

    def divided(function: Differentiated) -> tuple[Callable[..., Any], Flat]:
        closed = without_jits(function.closed)
        try:
            accumulated = _Accumulated(closed, rewrite, function)
        except UndividedError as error:
            found.append(Loss(reason=str(error)))
            return function.vjp, as_function(closed)
        found.append(Loss(num_examples=accumulated.num_examples))
        return jit_adapter.plain_vjp(), accumulated

    with differentiated_by(divided):
        yield found
    if all(each.num_examples is None for each in found):
        reasons = "; ".join(dict.fromkeys(each.reason for each in found)) or "the step differentiates nothing"
        raise MemprofError(f"the loss cannot be divided into minibatches: {reasons}")


class _Accumulated:
    """A loss whose gradients are accumulated over minibatches.

    Args:
        closed: the function without jits.

    Raises:
        UndividedError: it cannot be divided.
    """

    def __init__(self, closed: core.ClosedJaxpr, rewrite: InMinibatches, function: Differentiated) -> None:
        jaxpr = self._jaxpr = closed.jaxpr
        if not function.is_loss:
            raise UndividedError("the differentiated function returns more than a loss")
        for equation in jit_adapter.all_equations(jaxpr):
            if not jit_adapter.has_no_side_effects(equation):
                raise UndividedError(f"{named(equation)} has side effects")
        self._closed, self._vjp = closed, function.vjp
        self._floats = [number for number, var in enumerate(jaxpr.invars) if is_float(var)]
        self.num_examples, self._states, self._division = self._divided()
        num_parts = max(each for each in range(1, rewrite.number + 1) if self.num_examples % each == 0)
        if num_parts == 1:
            raise UndividedError(f"{self.num_examples} examples have no parts of equal size")
        self._piece = functools.partial(
            Piece, num_parts=num_parts, num_rows=self.num_examples, is_interleaved=rewrite.interleaved
        )
        self._num_parts = num_parts

    def _divided(self) -> tuple[int, list[State], Division]:
        """Return the number of examples, the states of the constants and inputs, and the division."""
        jaxpr = self._jaxpr
        fixed = {*jaxpr.constvars, *(var for var in jaxpr.invars if not is_float(var))}
        constants = Constants()
        constants.add(self._closed)
        tries: list[tuple[int, list[State], Division]] = []
        for axis, length in _example_axes(jaxpr.constvars)[:_MAX_TRIES]:
            has_rows = [_length(var, axis) == length for var in jaxpr.constvars]
            states: list[State] = [*(axis if each else None for each in has_rows), *[None] * len(jaxpr.invars)]
            tries.append((length, states, Division(jaxpr, states, length, fixed=fixed, constants=constants)))
        if not tries:
            raise UndividedError("it reads no array with several examples, besides those that are differentiated")
        tries.sort(key=lambda each: -each[2].divided_bytes)
        reasons = [self._refusal(division) for _, _, division in tries]
        if all(reasons):
            raise UndividedError(reasons[0])
        return tries[reasons.index("")]

    def _refusal(self, division: Division) -> str:
        """Return why a division is useless; empty if it is useful."""
        state, loss = division.results[0], self._jaxpr.outvars[0]
        if state is Total.LATER:
            return division.reasons[loss]
        if state is None:
            return "it does not depend on the examples"
        is_small = division.divided_bytes < _LEAST_SHARE * division.whole_bytes
        return "only a small part of it is a sum over the examples" if is_small else ""

    def __call__(self, *args: Any) -> list[Any]:
        whole = jax.custom_vjp(as_function(self._closed))
        floats = self._floats

        def forward(*args: Any) -> tuple[list[Any], list[Any]]:
            return self._accumulated(args)

        def backward(gradients: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
            scaled = {
                number: (gradient * cotangents[0]).astype(self._jaxpr.invars[number].aval.dtype)
                for number, gradient in zip(floats, gradients, strict=True)
            }
            return tuple(scaled.get(number) for number in range(len(self._jaxpr.invars)))

        whole.defvjp(forward, backward)
        return [*whole(*args)]

    def _accumulated(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results of the function, and the gradients of its first result."""
        jaxpr, division = self._jaxpr, self._division
        known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*self._closed.consts, *args], strict=True))
        outside = dict(zip(division.outside, evaluated_whole(jaxpr, division.outside, dict(known)), strict=True))
        sums, rows = self._wanted()
        floats = [args[number] for number in self._floats]

        def minibatch(index: Any, *floats: Any) -> tuple[Any, list[Any]]:
            piece = self._piece(index=index)
            given = [*self._closed.consts, *args]
            for number, value in zip(self._floats, floats, strict=True):
                given[len(jaxpr.constvars) + number] = value
            inputs = [piece.taken(value, None, state) for value, state in zip(given, self._states, strict=True)]
            found = division.part(inputs, piece, [jaxpr.outvars[0], *sums, *rows], outside)
            return found[0], found[1:]

        def add(totals: list[Any], index: Any) -> tuple[list[Any], list[Any]]:
            loss, pull, found = self._vjp(functools.partial(minibatch, index), *floats, has_aux=True)
            shares = [*pull(jnp.ones_like(loss)), *found[: len(sums)]]
            added = [total + share.astype(total.dtype) for total, share in zip(totals, shares, strict=True)]
            return added, found[len(sums) :]

        zeros = [jnp.zeros_like(each, dtype=_sum_dtype(each.dtype)) for each in floats]
        zeros += [jnp.zeros(var.aval.shape, var.aval.dtype) for var in sums]
        totals, parts = jax.lax.scan(add, zeros, jnp.arange(self._num_parts))
        known.update(zip(sums, totals[len(floats) :], strict=True))
        piece = self._piece(index=0)
        known.update((var, piece.joined(part, axis)) for (var, axis), part in zip(rows.items(), parts, strict=True))
        return evaluated_whole(jaxpr, jaxpr.outvars, known), totals[: len(floats)]

    def _wanted(self) -> tuple[list[Any], dict[Any, int]]:
        """Return the sums, and the rows with their axes, that are results or that later equations read."""
        jaxpr, state = self._jaxpr, self._division.state
        made = [var for each in jaxpr.eqns for var in each.outvars if state(var) is not Total.LATER]
        parts = {var for var in made if state(var) is not None}
        later = [atom for atom in jaxpr.outvars if state(atom) is Total.LATER]
        numbers = needed(jaxpr, later, parts, among=range(len(jaxpr.eqns)))
        read = [*jaxpr.outvars, *(atom for number in numbers for atom in jaxpr.eqns[number].invars)]
        states = {atom: state(atom) for atom in read if isinstance(atom, core.Var)}
        rows = {var: each for var, each in states.items() if isinstance(each, int) and var not in jaxpr.constvars}
        return [var for var, each in states.items() if each is Total.SUM], rows


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


def _sum_dtype(dtype: Any) -> Any:
    """Return the dtype in which gradients of a dtype are added up: at least 32 bits."""
    return jnp.promote_types(dtype, jnp.float32)
