"""Large matrix products of a function: those whose result is larger than an operand whose rows it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

from jax.extend import core

from memprof.sources.jax.checkpointing.rows import Rows, rows_of

MIN_EXPANSION = 2  # how many times larger the result must be than the operand with the rows
PRODUCT = "dot_general"
_MANY_ROWS = 32  # fewer, such as the query heads that share keys, make few chunks


class Graph:
    """The equations that make and read each variable of a function."""

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.equations = jaxpr.eqns
        self.maker = {var: number for number, each in enumerate(jaxpr.eqns) for var in each.outvars}
        self.readers: dict[Any, list[int]] = defaultdict(list)
        for number, equation in enumerate(jaxpr.eqns):
            for atom in dict.fromkeys(each for each in equation.invars if isinstance(each, core.Var)):
                self.readers[atom].append(number)
        self.results = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}


def large_products(jaxpr: core.Jaxpr) -> Iterator[int]:
    """Yield the indices of the products of a function, largest result first."""
    products = [number for number, each in enumerate(jaxpr.eqns) if each.primitive.name == PRODUCT]
    yield from sorted(products, key=lambda number: (size_of(jaxpr.eqns[number].outvars[0]), number), reverse=True)


def possible_rows(equation: Any) -> list[Rows]:
    """Return the possible row axes of a product: the last axis of its first operand first, axes of few rows last."""
    found: dict[int, list[Rows]] = {True: [], False: []}
    for side, atom in enumerate(equation.invars):
        for axis in reversed(range(atom.aval.ndim)):
            (contracted, batch) = equation.params["dimension_numbers"]
            length = atom.aval.shape[axis]
            is_free = axis not in (*contracted[side], *batch[side])
            if is_free and length > 1 and size_of(equation.outvars[0]) >= MIN_EXPANSION * size_of(atom):
                rows = rows_of(equation, (axis, None) if side == 0 else (None, axis), length)
                if rows is not None:
                    found[length >= _MANY_ROWS].append(rows)
    return [*found[True], *found[False]]


def size_of(atom: Any) -> int:
    """Return the number of entries of an array."""
    return prod(atom.aval.shape)
