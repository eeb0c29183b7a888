"""Regions that process one large product row by row until it is small again: losses of logits, and attentions.

A region begins with a matrix product whose result is larger than its operand with the rows: logits, or attention
scores. It may begin with several: a student's logits and its teacher's. It includes all operations that read such a
large array. If no operation mixes the rows, a part of the rows can be computed without the others, and the large arrays
never exist whole. Regions are found by data flow alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from jax.extend import core

from memprof.sources.jax.checkpointing.products import (
    MIN_EXPANSION,
    PRODUCT,
    Graph,
    large_products,
    possible_rows,
    size_of,
)
from memprof.sources.jax.checkpointing.rows import COLLECTIVES, Axis, Rows, divided_rows, rows_behind, rows_of

_SOFTMAX = "exp"


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
        has_groups: whether a row takes several entries of an axis, such as the tokens of an example.
        has_collectives: whether it communicates with other devices of a `shard_map`.
    """

    kind: Kind
    numbers: tuple[int, ...]
    own: frozenset[int]
    rows: dict[int, Rows]
    num_rows: int
    inputs: tuple[tuple[Any, Axis], ...]
    outputs: tuple[tuple[Any, Axis], ...]
    large_bytes: int
    has_groups: bool
    has_collectives: bool


def find_regions(jaxpr: core.Jaxpr) -> list[Region]:
    """Return the losses and attentions of a function without jits, in order. No two share an operation.

    The largest products come first: a small one before the head, such as that of a low-rank adapter, would otherwise
    begin a region that contains the loss.
    """
    graph = Graph(jaxpr)
    found: list[Region] = []
    taken: set[int] = set()
    for number in large_products(jaxpr):
        for rows in () if number in taken else possible_rows(jaxpr.eqns[number]):
            region = _region_of(graph, number, rows)
            if region is not None and not taken.intersection(region.own):
                taken.update(region.own)
                found.append(region)
                break
    return sorted(found, key=lambda each: each.numbers)


def _region_of(graph: Graph, number: int, rows: Rows) -> Region | None:
    """Return the region that begins with a product, and with other products of which it reads large results, or None.

    A loss that compares a student with its teacher reads the logits of both.
    """
    seeds = {number: rows}
    found = _grown(graph, seeds)
    tried: set[int] = set()
    while found is not None:
        size = size_of(graph.equations[number].outvars[0])
        other = next((each for each in _read_products(graph, found, size) if each not in tried), None)
        if other is None:
            return found
        tried.add(other)
        for of_other in possible_rows(graph.equations[other]):
            region = _grown(graph, {**seeds, other: of_other})
            if region is not None and region.num_rows == found.num_rows and other in region.own:
                seeds, found = {**seeds, other: of_other}, region
                break
    return None


def _read_products(graph: Graph, region: Region, size: int) -> Iterator[int]:
    """Yield the products whose results a region reads, as they are or in another form, if they are large for `size`."""
    for var in (var for var, _ in region.inputs if MIN_EXPANSION * size_of(var) >= size):
        number = graph.maker.get(var)
        while number is not None and graph.equations[number].primitive.name != PRODUCT:
            inputs = [atom for atom in graph.equations[number].invars if isinstance(atom, core.Var)]
            largest = max(inputs, key=size_of, default=None)
            is_form = largest is not None and MIN_EXPANSION * size_of(largest) >= size_of(var)
            number = graph.maker.get(largest) if is_form else None
        if number is not None and number not in region.own:
            yield number


class _MixedRowsError(Exception):
    """An operation mixes the rows, or is unknown.

    Attributes:
        num_rows: a smaller number of rows, each of several of these, that the operation does not mix; or None.
    """

    def __init__(self, num_rows: int | None = None) -> None:
        super().__init__()
        self.num_rows = num_rows


def _grown(graph: Graph, seeds: dict[int, Rows]) -> Region | None:
    """Return the region that begins with these products, or None.

    If the rows are divided into examples later, each of several tokens, the rows are the examples.
    """
    number, rows = next(iter(seeds.items()))
    assert rows.result is not None
    num_rows: int | None = int(graph.equations[number].outvars[0].aval.shape[rows.result])
    while num_rows is not None and num_rows > 1:
        try:
            return _Growth(graph, seeds, num_rows).region()
        except _MixedRowsError as error:
            num_rows = error.num_rows
    return None


@dataclass(slots=True)
class _Growth:
    """A region while it grows."""

    graph: Graph
    seeds: dict[int, Rows]  # the products that it begins with
    num_rows: int
    rows: dict[int, Rows] = field(default_factory=dict)
    axes: dict[Any, Axis] = field(default_factory=dict)  # row axes of the variables that it makes
    waiting: dict[Any, int] = field(default_factory=dict)  # variables made from the region's, which may lie behind it

    @property
    def _products(self) -> list[Any]:
        return [self.graph.equations[number].outvars[0] for number in self.seeds]

    def region(self) -> Region | None:
        """Return the region of the products, or None if it makes no loss and no attention.

        Raises:
            _MixedRowsError: an operation mixes the rows.
        """
        for number in range(min(self.seeds), len(self.graph.equations)):
            if number in self.seeds:
                self._begin(number)
            else:
                self._visit(number)
        own = frozenset(self.rows)
        inputs = self._inputs()
        made = [var for number in own for var in self.graph.equations[number].outvars]
        outputs = [(var, self.axes[var]) for var in made if self._is_read_outside(var)]
        names = [self.graph.equations[number].primitive.name for number in sorted(own.difference(self.seeds))]
        if not outputs or _SOFTMAX not in names or any(self._is_large(var) for var, _ in outputs):
            return None
        return Region(
            kind=Kind.ATTENTION if PRODUCT in names[names.index(_SOFTMAX) :] else Kind.LOSS,
            numbers=tuple(sorted(self.rows)),
            own=own,
            rows=self.rows,
            num_rows=self.num_rows,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            large_bytes=sum(size_of(each) * each.aval.dtype.itemsize for each in self._products),
            has_groups=any(
                axis is not None and var.aval.shape[axis] != self.num_rows
                for var, axis in (*self.axes.items(), *inputs)
            ),
            has_collectives=not COLLECTIVES.isdisjoint(names),
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
        equation = self.graph.equations[number]
        rows = None if is_of_sum else rows_of(equation, axes, self.num_rows)
        if rows is None:
            raise _MixedRowsError(divided_rows(equation, axes, self.num_rows))
        if any(is_own and axis != wanted for axis, is_own, wanted in zip(axes, own, rows.inputs, strict=True)):
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
        return MIN_EXPANSION * size_of(var) >= size_of(self._products[0])

    def _is_read_outside(self, var: Any) -> bool:
        return var in self.graph.results or any(number not in self.rows for number in self.graph.readers[var])
