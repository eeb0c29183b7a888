"""Regions that process one large product row by row until it is small again: losses of logits, and attentions.

A region begins with a matrix product whose result is larger than its operand with the rows: logits, or attention
scores. It may begin with several: a student's logits and its teacher's. It includes all operations that read such a
large array. If no operation mixes the rows, a part of the rows can be computed without the others, and the large arrays
never exist whole. Regions are found by data flow alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod
from typing import Any

from jax.extend import core

from memprof.sources.jax.checkpointing.rows import Axis, Rows, rows_behind, rows_of

_MIN_EXPANSION = 2  # how many times larger the first product must be than its operand with the rows
_MANY_ROWS = 32  # fewer, such as the query heads that share keys, make few chunks
_SOFTMAX = "exp"
_PRODUCT = "dot_general"


class Kind(Enum):
    """The computation in a region."""

    LOSS = auto()  # logits, and a softmax of them
    ATTENTION = auto()  # the same, and a product of that with values


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Some equations of a function.

    Attributes:
        numbers: the indices of the equations in the function.
        own: equations that make or read a large array. The others are also evaluated outside the region if their
            results are read there.
        rows: the row axes of each equation.
        num_rows: the number of rows.
        inputs: the variables from outside, each with its row axis.
        outputs: the variables that are read outside, each with its row axis, or None for sums over all rows.
        large_bytes: size of the products that it begins with.
    """

    kind: Kind
    numbers: tuple[int, ...]
    own: frozenset[int]
    rows: dict[int, Rows]
    num_rows: int
    inputs: tuple[tuple[Any, Axis], ...]
    outputs: tuple[tuple[Any, Axis], ...]
    large_bytes: int


def find_regions(jaxpr: core.Jaxpr) -> list[Region]:
    """Return the losses and attentions of a function without jits, in order. No two share an operation.

    The largest products come first: a small one before the head, such as that of a low-rank adapter, would otherwise
    begin a region that contains the loss.
    """
    graph = _Graph(jaxpr)
    found: list[Region] = []
    taken: set[int] = set()
    products = [number for number, each in enumerate(jaxpr.eqns) if each.primitive.name == _PRODUCT]
    for number in sorted(products, key=lambda number: (_size(jaxpr.eqns[number].outvars[0]), number), reverse=True):
        for rows in () if number in taken else _possible_rows(jaxpr.eqns[number]):
            region = _region_of(graph, number, rows)
            if region is not None and not taken.intersection(region.own):
                taken.update(region.own)
                found.append(region)
                break
    return sorted(found, key=lambda each: each.numbers)


def _possible_rows(equation: Any) -> list[Rows]:
    """Return the possible row axes of a product: the last axis of its first operand first, axes of few rows last."""
    found: dict[int, list[Rows]] = {True: [], False: []}
    for side, atom in enumerate(equation.invars):
        for axis in reversed(range(atom.aval.ndim)):
            (contracted, batch) = equation.params["dimension_numbers"]
            length = atom.aval.shape[axis]
            is_free = axis not in (*contracted[side], *batch[side])
            if is_free and length > 1 and _size(equation.outvars[0]) >= _MIN_EXPANSION * _size(atom):
                rows = rows_of(equation, (axis, None) if side == 0 else (None, axis), length)
                if rows is not None:
                    found[length >= _MANY_ROWS].append(rows)
    return [*found[True], *found[False]]


class _Graph:
    """The equations that make and read each variable of a function."""

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.equations = jaxpr.eqns
        self.maker = {var: number for number, each in enumerate(jaxpr.eqns) for var in each.outvars}
        self.readers: dict[Any, list[int]] = defaultdict(list)
        for number, equation in enumerate(jaxpr.eqns):
            for atom in dict.fromkeys(each for each in equation.invars if isinstance(each, core.Var)):
                self.readers[atom].append(number)
        self.results = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}


def _region_of(graph: _Graph, number: int, rows: Rows) -> Region | None:
    """Return the region that begins with a product, and with other products of which it reads large results, or None.

    A loss that compares a student with its teacher reads the logits of both.
    """
    seeds = {number: rows}
    found = _Growth(graph, seeds).region()
    tried: set[int] = set()
    while found is not None:
        size = _size(graph.equations[number].outvars[0])
        other = next((each for each in _read_products(graph, found, size) if each not in tried), None)
        if other is None:
            return found
        tried.add(other)
        for of_other in _possible_rows(graph.equations[other]):
            region = _Growth(graph, {**seeds, other: of_other}).region()
            if region is not None and region.num_rows == found.num_rows and other in region.own:
                seeds, found = {**seeds, other: of_other}, region
                break
    return None


def _read_products(graph: _Graph, region: Region, size: int) -> Iterator[int]:
    """Yield the products whose results a region reads, as they are or in another form, if they are large for `size`."""
    for var in (var for var, _ in region.inputs if _MIN_EXPANSION * _size(var) >= size):
        number = graph.maker.get(var)
        while number is not None and graph.equations[number].primitive.name != _PRODUCT:
            inputs = [atom for atom in graph.equations[number].invars if isinstance(atom, core.Var)]
            largest = max(inputs, key=_size, default=None)
            is_form = largest is not None and _MIN_EXPANSION * _size(largest) >= _size(var)
            number = graph.maker.get(largest) if is_form else None
        if number is not None and number not in region.own:
            yield number


class _MixedRowsError(Exception):
    """An operation mixes the rows, or is unknown."""


@dataclass(slots=True)
class _Growth:
    """A region while it grows."""

    graph: _Graph
    seeds: dict[int, Rows]  # the products that it begins with
    rows: dict[int, Rows] = field(default_factory=dict)
    axes: dict[Any, Axis] = field(default_factory=dict)  # row axes of the variables that it makes
    waiting: dict[Any, int] = field(default_factory=dict)  # variables made from the region's, which may lie behind it

    @property
    def _products(self) -> list[Any]:
        return [self.graph.equations[number].outvars[0] for number in self.seeds]

    @property
    def _num_rows(self) -> int:
        axis = next(iter(self.seeds.values())).result
        assert axis is not None
        return int(self._products[0].aval.shape[axis])

    def region(self) -> Region | None:
        """Return the region of the products, or None."""
        try:
            for number in range(min(self.seeds), len(self.graph.equations)):
                if number in self.seeds:
                    self._begin(number)
                else:
                    self._visit(number)
            own = frozenset(self.rows)
            inputs = self._inputs()
        except _MixedRowsError:
            return None
        made = [var for number in own for var in self.graph.equations[number].outvars]
        outputs = [(var, self.axes[var]) for var in made if self._is_read_outside(var)]
        names = [self.graph.equations[number].primitive.name for number in sorted(own.difference(self.seeds))]
        if not outputs or _SOFTMAX not in names or any(self._is_large(var) for var, _ in outputs):
            return None
        return Region(
            kind=Kind.ATTENTION if _PRODUCT in names[names.index(_SOFTMAX) :] else Kind.LOSS,
            numbers=tuple(sorted(self.rows)),
            own=own,
            rows=self.rows,
            num_rows=self._num_rows,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            large_bytes=sum(_size(each) * each.aval.dtype.itemsize for each in self._products),
        )

    def _begin(self, number: int) -> None:
        """Add a product that reads nothing of the region."""
        read = {atom for atom in self.graph.equations[number].invars if isinstance(atom, core.Var)}
        if not read.isdisjoint(self.axes) or not read.isdisjoint(self.waiting):
            raise _MixedRowsError
        self._add(number, self.seeds[number])

    def _visit(self, number: int) -> None:
        equation = self.graph.equations[number]
        read = [atom for atom in equation.invars if isinstance(atom, core.Var)]
        if any(atom in self.axes and self._is_large(atom) for atom in read):
            self._join(number)
        elif any(atom in self.axes or atom in self.waiting for atom in read):
            self.waiting.update(dict.fromkeys(equation.outvars, number))

    def _join(self, number: int) -> None:
        """Add an equation, and the equations between it and the region."""
        read = self.graph.equations[number].invars
        for atom in read:
            if isinstance(atom, core.Var) and atom in self.waiting:
                self._join(self.waiting[atom])
        own = [isinstance(atom, core.Var) and atom in self.axes for atom in read]
        axes = [self.axes[atom] if is_own else None for atom, is_own in zip(read, own, strict=True)]
        is_of_sum = any(is_own and axis is None for axis, is_own in zip(axes, own, strict=True))
        rows = None if is_of_sum else rows_of(self.graph.equations[number], axes, self._num_rows)
        if rows is None or any(
            is_own and axis != wanted for axis, is_own, wanted in zip(axes, own, rows.inputs, strict=True)
        ):
            raise _MixedRowsError
        self._add(number, rows)

    def _add(self, number: int, rows: Rows) -> None:
        self.rows[number] = rows
        for var in self.graph.equations[number].outvars:
            self.axes[var] = rows.result
            self.waiting.pop(var, None)

    def _inputs(self) -> list[tuple[Any, Axis]]:
        """Return the region's inputs. Large arrays made from small ones, such as masks, are recomputed inside."""
        found: dict[tuple[Any, Axis], None] = {}
        pending = sorted(self.rows)
        while pending:
            number = pending.pop()
            for atom, axis in zip(self.graph.equations[number].invars, self.rows[number].inputs, strict=True):
                if not isinstance(atom, core.Var) or (atom in self.axes and self.axes[atom] == axis):
                    continue
                maker = self.graph.maker.get(atom)
                behind = None
                if maker is not None and axis is not None and self._is_large(atom):
                    behind = rows_behind(self.graph.equations[maker], axis)
                if maker is None or behind is None:
                    found[atom, axis] = None
                else:
                    self._add(maker, behind)
                    pending.append(maker)
        if any(atom in self.axes for atom, _ in found):  # read whole, or along another axis
            raise _MixedRowsError
        return list(found)

    def _is_large(self, var: Any) -> bool:
        return _MIN_EXPANSION * _size(var) >= _size(self._products[0])

    def _is_read_outside(self, var: Any) -> bool:
        return var in self.graph.results or any(number not in self.rows for number in self.graph.readers[var])


def _size(atom: Any) -> int:
    return prod(atom.aval.shape)
