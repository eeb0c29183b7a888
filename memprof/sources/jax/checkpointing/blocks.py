"""The blocks of a differentiated function: the parts that a plan puts checkpoints around.

Blocks are the bodies of its scans, and its repetitions: the layers of a model, found as the same operations repeated on
the same shapes. If the body of a scan consists of other scans, the bodies of these are blocks. A function without
either is one block. The backward pass goes only through operations that depend on the function's inputs, so the layers
of a frozen model, which the function closes over, are not blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core

_MIN_SHARE = 0.25  # of the bytes that a function makes; a repetition that makes less is not a layer
_NEAR_TIE = 0.95
_NEARLY_ALL = 0.9  # of the bytes of a scan's body
# Calls whose operations count as those of the caller, with the name of the parameter that holds them.
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
         "checkpoint": "jaxpr", "remat": "jaxpr"}  # fmt: skip
# Of the largest repetition's bytes; one that makes less for the backward pass belongs to a frozen model.
_MIN_PART_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A repetition in a function: `length` equations, repeated `count` times from `start` on.

    Attributes:
        count: 1 if the function has no repetition and all equations are one block.
    """

    start: int
    length: int
    count: int

    def starts(self) -> range:
        """Return the first equation of each repetition."""
        return range(self.start, self.start + self.length * self.count, self.length)


def is_loop(equation: Any) -> bool:
    """Whether an equation is a scan of several iterations. Its body is a block."""
    return equation.primitive.name == "scan" and int(equation.params["length"]) > 1


def differentiated_equations(jaxpr: core.Jaxpr) -> list[bool]:
    """Return for each equation of a differentiated function whether the backward pass goes through it."""
    reached = {var for var in jaxpr.invars if _has_derivative(var)}
    found: list[bool] = []
    for equation in jaxpr.eqns:
        is_reached = equation.primitive.name != "stop_gradient" and any(
            isinstance(atom, core.Var) and atom in reached for atom in equation.invars
        )
        results = [var for var in equation.outvars if _has_derivative(var)] if is_reached else []
        reached.update(results)
        found.append(bool(results))
    return found


def differentiated_loops(jaxpr: core.Jaxpr) -> list[Any]:
    """Return the scans of a differentiated function whose bodies are blocks."""
    flags = differentiated_equations(jaxpr)
    return [each for each, is_reached in zip(jaxpr.eqns, flags, strict=True) if is_reached and is_loop(each)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoop:
    """A scan whose body is a block.

    Attributes:
        num_runs: how many times it runs: the iterations of the scans around it.
    """

    equation: Any
    num_runs: int = 1

    @property
    def length(self) -> int:
        """The number of iterations in one run."""
        return int(self.equation.params["length"])


def block_loops(jaxpr: core.Jaxpr) -> list[BlockLoop]:
    """Return the scans of a differentiated function whose bodies are blocks: innermost ones."""

    def within(loop: BlockLoop) -> list[BlockLoop]:
        inner = inner_loops(loop.equation)
        if not inner:
            return [loop]
        return [
            found for each in inner for found in within(BlockLoop(equation=each, num_runs=loop.num_runs * loop.length))
        ]

    return [found for each in differentiated_loops(jaxpr) for found in within(BlockLoop(equation=each))]


def inner_loops(loop: Any) -> list[Any]:
    """Return the scans in the body of a scan, if they make nearly all of its bytes; otherwise nothing."""
    body = loop.params["jaxpr"].jaxpr
    found = [each for each in equations_in_calls(body) if is_loop(each) and any(map(_has_derivative, each.outvars))]
    total = sum(_bytes_with_iterations(each) for each in equations_in_calls(body))
    return found if sum(map(_bytes_with_iterations, found)) >= _NEARLY_ALL * max(total, 1) else []


def equations_in_calls(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Yield the equations of a jaxpr, with those of its calls in place of the calls. Scans and branches stay."""
    for equation in jaxpr.eqns:
        inner = list(core.jaxprs_in_params(equation.params))
        if len(inner) == 1 and equation.primitive.name in CALLS:
            yield from equations_in_calls(inner[0])
        else:
            yield equation


def _bytes_with_iterations(equation: Any) -> int:
    """Return the bytes that an equation makes, with all iterations of a scan."""
    if not is_loop(equation):
        return made_bytes(equation.outvars)
    return int(equation.params["length"]) * sum(
        map(_bytes_with_iterations, equations_in_calls(equation.params["jaxpr"].jaxpr))
    )


def _has_derivative(var: Any) -> bool:
    return hasattr(var.aval, "dtype") and bool(jnp.issubdtype(var.aval.dtype, jnp.inexact))


def find_repeated(jaxpr: core.Jaxpr) -> Repeated | None:
    """Return the equations that a function repeats, or None if its scans are its blocks.

    A function without scans and with little repetition is one block.

    Args:
        jaxpr: a jaxpr without calls of other jaxprs, except loops, branches and custom derivatives.
    """
    equations, flags = jaxpr.eqns, differentiated_equations(jaxpr)
    sizes = (_bytes_with_iterations(each) * is_reached for each, is_reached in zip(equations, flags, strict=True))
    made = np.array([*sizes], dtype=np.float64)
    found = _largest_repetition(_operation_numbers(equations), made)
    if found is None or made[found[0] : found[0] + found[2]].sum() < _MIN_SHARE * max(made.sum(), 1.0):
        if not equations or differentiated_loops(jaxpr):
            return None
        return Repeated(start=0, length=len(equations), count=1)
    first, period, covered = found
    return _without_frozen(_best_cut(jaxpr, first, period, covered), made)


def _operation_numbers(equations: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Number the equations by operation: the same operation on arrays of the same types has the same number."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(_token(each), len(known)) for each in equations], dtype=np.int64)


def _token(equation: Any) -> object:
    def types(atoms: Sequence[Any]) -> tuple[str, ...]:
        return tuple(str(atom.aval) for atom in atoms)

    params = tuple((name, _text(value)) for name, value in sorted(equation.params.items()))
    return (equation.primitive.name, types(equation.invars), types(equation.outvars), params)


def _text(value: object) -> str:
    if callable(value) and not isinstance(value, (core.Jaxpr, core.ClosedJaxpr)):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return str(value)


def _largest_repetition(
    numbers: np.ndarray[Any, np.dtype[np.int64]], made: np.ndarray[Any, np.dtype[np.float64]]
) -> tuple[int, int, int] | None:
    """Return start, period and length of the repetition with the most bytes; near ties go to the shortest period."""
    sums = np.concatenate([[0.0], np.cumsum(made)])
    found: list[tuple[float, int, int, int]] = []
    for period in range(1, len(numbers) // 2 + 1):
        same = np.concatenate([[0], (numbers[:-period] == numbers[period:]).astype(np.int8), [0]])
        edges = np.diff(same)
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        long = ends - begins >= period
        for begin, end in zip(begins[long], ends[long], strict=True):
            covered = int(end - begin) + period
            parts = _made_by_each(made, int(begin), period, covered // period)
            if np.count_nonzero(parts >= _MIN_PART_SHARE * max(parts)) < 2:  # the others are of a frozen model
                continue
            found.append((float(sums[begin + covered] - sums[begin]), period, int(begin), covered))
    if not found:
        return None
    most = max(each[0] for each in found)
    _, period, begin, covered = min(
        (each for each in found if each[0] >= _NEAR_TIE * most), key=lambda each: (each[1], -each[0])
    )
    return begin, period, covered


def _made_by_each(
    made: np.ndarray[Any, np.dtype[np.float64]], start: int, length: int, count: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the bytes that each repetition makes for the backward pass."""
    return made[start : start + length * count].reshape(count, length).sum(1)


def _without_frozen(repeated: Repeated, made: np.ndarray[Any, np.dtype[np.float64]]) -> Repeated:
    """Return a repetition without its first and last parts that belong to a frozen model."""
    parts = _made_by_each(made, repeated.start, repeated.length, repeated.count)
    (kept,) = np.nonzero(parts >= _MIN_PART_SHARE * max(parts))
    first, last = int(kept[0]), int(kept[-1])
    return replace(repeated, start=repeated.start + first * repeated.length, count=last - first + 1)


def _best_cut(jaxpr: core.Jaxpr, first: int, period: int, covered: int) -> Repeated:
    """Cut a repetition at the place in its period where the fewest bytes are live from one block to the next."""
    last_use: dict[Any, int] = {}
    made_at: dict[Any, int] = {}
    for place, equation in enumerate(jaxpr.eqns):
        last_use.update({atom: place for atom in equation.invars if isinstance(atom, core.Var)})
        made_at.update(dict.fromkeys(equation.outvars, place))
    last_use.update({atom: len(jaxpr.eqns) for atom in jaxpr.outvars if isinstance(atom, core.Var)})

    def crossing_bytes(cut: int) -> int:
        return sum(made_bytes([var]) for var, place in made_at.items() if place < cut <= last_use.get(var, -1))

    most = covered // period
    candidates = [
        (count < max(2, most - 1), crossing_bytes(start + period), -count, start, count)
        for start in range(first, first + min(period, covered - period + 1))
        if (count := (first + covered - start) // period) >= 1
    ]
    *_, start, count = min(candidates)
    return Repeated(start=start, length=period, count=count)


def made_bytes(atoms: Sequence[Any]) -> int:
    """Return the total size of some values, in bytes."""
    return sum(prod(atom.aval.shape) * atom.aval.dtype.itemsize for atom in atoms if hasattr(atom.aval, "dtype"))
