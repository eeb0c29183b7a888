"""One part of the rows of a function, and the states of its values (see `division.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import jax
import jax.numpy as jnp

from memprof.sources.jax.checkpointing.rows import Axis


class Total(Enum):
    """The state of a value that is made from all rows: a sum over them, or one that is computed later."""

    SUM = auto()
    LATER = auto()


@dataclass(frozen=True, slots=True)
class Grouped:
    """The state of an array with several groups of all rows along an axis, group by group (see `row_groups.py`)."""

    axis: int
    number: int


State = Axis | Grouped | Total


def in_groups(state: State, number: int) -> State:
    """Return a state with that many groups of rows in place of one; a whole value or a sum stays as it is."""
    return Grouped(state, number) if isinstance(state, int) and number > 1 else state


def num_groups(state: State) -> int:
    """Return the number of groups of rows along the row axis."""
    return state.number if isinstance(state, Grouped) else 1


def axis_of(state: State) -> Axis:
    """Return the row axis of a state; None if it has none."""
    if isinstance(state, Grouped):
        return state.axis
    return None if isinstance(state, Total) else state


def moved(state: State, by: int) -> State:
    """Return the state of an array with more or fewer axes before the row axis."""
    if isinstance(state, Grouped):
        return Grouped(state.axis + by, state.number)
    return state + by if isinstance(state, int) else state


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part of the rows.

    Attributes:
        index: number of the part, which may be traced.
        num_parts: number of parts; it divides the number of rows.
        num_rows: number of rows of the whole.
        num_groups: number of groups of rows; the part takes its rows of each.
        is_interleaved: whether it takes every `num_parts`-th row of a group, instead of consecutive rows.
    """

    index: Any
    num_parts: int
    num_rows: int
    num_groups: int = 1
    is_interleaved: bool = False

    @property
    def part_rows(self) -> int:
        """The number of rows of a part."""
        return self.num_rows // self.num_parts

    def of_groups(self, number: int) -> Piece:
        """Return the same part of several groups of the rows."""
        return replace(self, num_rows=number * self.num_rows, num_groups=number * self.num_groups)

    def of_array(self, array: Any, axis: int) -> Any:
        """Return the part's rows of a whole array. Each row may take several entries of the axis."""
        shape, group_rows = array.shape, self.part_rows // self.num_groups
        before, after, width = shape[:axis], shape[axis + 1 :], shape[axis] // self.num_rows
        middle = (group_rows, self.num_parts) if self.is_interleaved else (self.num_parts, group_rows)
        split = array.reshape(*before, self.num_groups, *middle, width, *after)
        rows = jax.lax.dynamic_index_in_dim(split, self.index, axis + 1 + self.is_interleaved, keepdims=False)
        return rows.reshape(*before, self.part_rows * width, *after)

    def joined(self, parts: Any, state: State) -> Any:
        """Return the whole array from all parts, which are stacked along a new first axis."""
        if isinstance(state, Grouped):
            return self.of_groups(state.number).joined(parts, state.axis)
        assert isinstance(state, int)
        before, after, width = parts.shape[1 : state + 1], parts.shape[state + 2 :], parts.shape[state + 1]
        group_rows, width_of_row = self.part_rows // self.num_groups, width // self.part_rows
        split = jnp.moveaxis(
            parts.reshape(self.num_parts, *before, self.num_groups, group_rows, width_of_row, *after),
            0,
            state + 1 + self.is_interleaved,
        )
        return split.reshape(*before, self.num_parts * width, *after)

    def once(self, value: Any) -> Any:
        """Return the part's share of a whole value in a sum: all of it for the first part, zero for the others."""
        return jnp.where(self.index == 0, value, jnp.zeros_like(value))

    def taken(self, value: Any, has: State, wanted: State) -> Any:
        """Convert a value to another state: the part's rows of a whole array, or its share in a sum."""
        if has == wanted:
            return value
        assert has is None, (has, wanted)
        if isinstance(wanted, Total):
            return self.once(value)
        if isinstance(wanted, Grouped):
            return self.of_groups(wanted.number).of_array(value, wanted.axis)
        assert wanted is not None
        return self.of_array(value, wanted)
