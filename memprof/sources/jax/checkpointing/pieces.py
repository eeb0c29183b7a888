"""One part of the rows of a function, and the states of its values (see `division.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import jax
import jax.numpy as jnp

from memprof.sources.jax.checkpointing.rows import Axis


class Total(Enum):
    """The state of a value that is made from all rows: a sum over them, or one that is computed later."""

    SUM = auto()
    LATER = auto()


State = Axis | Total


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part of the rows.

    Attributes:
        index: number of the part, which may be traced.
        num_parts: number of parts; it divides the number of rows.
        num_rows: number of rows of the whole.
        is_interleaved: whether it takes every `num_parts`-th row, instead of consecutive rows.
    """

    index: Any
    num_parts: int
    num_rows: int
    is_interleaved: bool = False

    @property
    def part_rows(self) -> int:
        """The number of rows of a part."""
        return self.num_rows // self.num_parts

    def of_array(self, array: Any, axis: int) -> Any:
        """Return the part's rows of a whole array. Each row may take several entries of the axis."""
        shape = array.shape
        before, after, width = shape[:axis], shape[axis + 1 :], shape[axis] // self.num_rows
        middle = (self.part_rows, self.num_parts) if self.is_interleaved else (self.num_parts, self.part_rows)
        split = array.reshape(*before, *middle, width, *after)
        rows = jax.lax.dynamic_index_in_dim(split, self.index, axis + self.is_interleaved, keepdims=False)
        return rows.reshape(*before, self.part_rows * width, *after)

    def joined(self, parts: Any, axis: int) -> Any:
        """Return the whole array from all parts, which are stacked along a new first axis."""
        before, after, width = parts.shape[1 : axis + 1], parts.shape[axis + 2 :], parts.shape[axis + 1]
        split = jnp.moveaxis(
            parts.reshape(self.num_parts, *before, self.part_rows, width // self.part_rows, *after),
            0,
            axis + self.is_interleaved,
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
        assert wanted is not None
        return self.of_array(value, wanted)
