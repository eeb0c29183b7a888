"""Equations that read a part of an array: slices, dynamic slices and gathers.

Each reads windows. A window has some entries of each axis, from a start on. A slice reads one window, a gather several.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.rows import Axis

_Compute = Callable[..., Any]  # an array, from arrays that it is made from


class Read(ABC):
    """An equation that reads windows of its first input.

    Attributes:
        kept: the axes of which a window has fewer entries than there are, each with their number. A gather that has
            its own entry of an axis for each of its indices has one entry of that.
        needed: the axes among them that cannot be left whole.
        num_windows: the number of windows.
        has_known_places: whether the places of the windows do not depend on values.
    """

    kept: dict[int, int]
    has_known_places: bool = False
    needed: frozenset[int] = frozenset()
    num_windows: int = 1

    def __init__(self, equation: Any) -> None:
        self.equation = equation
        self.shape = equation.invars[0].aval.shape

    @abstractmethod
    def evaluated(
        self, compute: _Compute, arrays: Sequence[Any], axes: Sequence[dict[int, Axis]], indices: Sequence[Any]
    ) -> Any:
        """Return what the equation reads, computed from windows of other arrays.

        Args:
            compute: computes a window of the equation's first input from windows of `arrays`.
            arrays: the arrays that the first input is made from.
            axes: for each array, its axis that corresponds to an axis of the first input; None: it has none.
            indices: the equation's other inputs.
        """

    def share(self, axes: Sequence[int]) -> float:
        """Return the number of entries that it reads along axes, as a share of all."""
        num_entries = prod(int(self.shape[each]) for each in axes)
        return self.num_windows * prod(self.kept[each] for each in axes) / num_entries


class _Slice(Read):
    """A slice with known places."""

    has_known_places = True

    def __init__(self, equation: Any) -> None:
        super().__init__(equation)
        params = equation.params
        strides = params["strides"] or (1,) * len(self.shape)
        cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        places = enumerate(zip(cuts, self.shape, strict=True))
        self._cuts = {axis: cut for axis, (cut, size) in places if cut != (0, size, 1)}
        self.kept = {axis: len(range(*cut)) for axis, cut in self._cuts.items()}

    def evaluated(
        self, compute: _Compute, arrays: Sequence[Any], axes: Sequence[dict[int, Axis]], indices: Sequence[Any]
    ) -> Any:
        result = compute(*[self._cut(array, each) for array, each in zip(arrays, axes, strict=True)])
        moved = {axis for each in axes for axis in each}
        return self._cut(result, {axis: axis for axis in self._cuts if axis not in moved})

    def _cut(self, array: Any, axes: dict[int, Axis]) -> Any:
        for axis, own in axes.items():
            if own is not None:
                array = jax.lax.slice_in_dim(array, *self._cuts[axis], axis=own)
        return array


class _DynamicSlice(Read):
    """A slice whose place is computed."""

    def __init__(self, equation: Any) -> None:
        super().__init__(equation)
        sizes = equation.params["slice_sizes"]
        self.kept = {axis: each for axis, (each, size) in enumerate(zip(sizes, self.shape, strict=True)) if each < size}

    def evaluated(
        self, compute: _Compute, arrays: Sequence[Any], axes: Sequence[dict[int, Axis]], indices: Sequence[Any]
    ) -> Any:
        return _window(compute, arrays, axes, self.kept, indices)


class _Gather(Read):
    """A gather."""

    def __init__(self, equation: Any) -> None:
        super().__init__(equation)
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        self.needed = frozenset(each for each in numbers.operand_batching_dims if self.shape[each] > 1)
        self.kept = {
            axis: each
            for axis, (each, size) in enumerate(zip(sizes, self.shape, strict=True))
            if each < size or axis in self.needed
        }
        *self._batch, _ = equation.invars[1].aval.shape
        self.num_windows = prod(self._batch)
        own = zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
        self._own_axes = dict(own)  # of the first input, by the axis of the indices

    def evaluated(
        self, compute: _Compute, arrays: Sequence[Any], axes: Sequence[dict[int, Axis]], indices: Sequence[Any]
    ) -> Any:
        numbers, sizes = self.equation.params["dimension_numbers"], self.equation.params["slice_sizes"]
        dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        (places,) = indices
        last = {axis: self.shape[axis] - sizes[axis] for axis in numbers.start_index_map}  # possible start of a window

        def one(place: Any, *own: Any) -> Any:
            starts = [jnp.zeros((), place.dtype)] * len(self.shape)
            for number, axis in enumerate(numbers.start_index_map):
                starts[axis] = jnp.clip(place[number], 0, last[axis])
            kept = {axis: each for axis, each in self.kept.items() if axis not in self.needed}
            return jnp.squeeze(_window(compute, own, axes, kept, starts), dropped)

        every = one
        for along in reversed(range(len(self._batch))):
            every = self._mapped(every, along, axes)
        windows = every(places, *arrays)
        if self.equation.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP:
            each = [
                (places[..., number] >= 0) & (places[..., number] <= most) for number, most in enumerate(last.values())
            ]
            is_inside = functools.reduce(jnp.logical_and, each)
            fill = self.equation.params["fill_value"]
            is_inside = is_inside.reshape(*self._batch, *[1] * (windows.ndim - len(self._batch)))
            windows = jnp.where(is_inside, windows, jnp.nan if fill is None else fill)
        of_windows = range(len(self._batch), windows.ndim)
        return jnp.moveaxis(windows, of_windows, numbers.offset_dims)

    def _mapped(self, function: _Compute, along: int, axes: Sequence[dict[int, Axis]]) -> _Compute:
        """Return a function for each entry of an axis of the indices, which has entries of its own of some arrays."""
        own = self._own_axes.get(along)
        of_arrays = [None if own is None else each.get(own) for each in axes]

        def one(place: Any, *arrays: Any) -> Any:
            pairs = zip(arrays, of_arrays, strict=True)
            return function(place, *[each if axis is None else jnp.expand_dims(each, axis) for each, axis in pairs])

        mapped: _Compute = jax.vmap(one, in_axes=(0, *of_arrays))
        return mapped


_KINDS: dict[str, type[Read]] = {"dynamic_slice": _DynamicSlice, "gather": _Gather, "slice": _Slice}


def is_read(equation: Any) -> bool:
    """Whether an equation reads a part of its first input."""
    return equation.primitive.name in _KINDS


def read_of(equations: Sequence[Any], var: core.Var) -> Read | None:
    """Return what some equations read of a variable; None if they do not all read the same of it alone."""
    if not equations or not all(map(is_read, equations)):
        return None
    first = equations[0]
    if any(each.invars[0] is not var or not _are_same(each, first) or var in each.invars[1:] for each in equations):
        return None
    if not jnp.issubdtype(var.aval.dtype, jnp.inexact):
        return None
    return _KINDS[first.primitive.name](first)


def _are_same(one: Any, other: Any) -> bool:
    """Whether two equations read the same places."""
    if one.primitive is not other.primitive or one.params != other.params:
        return False
    return all(
        each is mate or (isinstance(each, core.Literal) and isinstance(mate, core.Literal) and each.val == mate.val)
        for each, mate in zip(one.invars[1:], other.invars[1:], strict=True)
    )


def _window(
    compute: _Compute,
    arrays: Sequence[Any],
    axes: Sequence[dict[int, Axis]],
    kept: dict[int, int],
    starts: Sequence[Any],
) -> Any:
    """Compute an array's window from windows of the arrays that it is made from, then read the other axes of it.

    Args:
        kept: the numbers of entries of the window along axes of which it has not all.
        starts: the first entry of the window along each axis.
    """

    def cut(array: Any, own: dict[int, Axis]) -> Any:
        places = {own[axis]: axis for axis in kept if own.get(axis) is not None}
        if not places:
            return array
        first = [starts[places[each]] if each in places else 0 for each in range(array.ndim)]
        sizes = [kept[places[each]] if each in places else size for each, size in enumerate(array.shape)]
        return jax.lax.dynamic_slice(array, _of_one_type(first), sizes, allow_negative_indices=False)

    result = compute(*[cut(array, own) for array, own in zip(arrays, axes, strict=True)])
    moved = {axis for own in axes for axis in own}
    return cut(result, {axis: axis for axis in kept if axis not in moved})


def _of_one_type(starts: Sequence[Any]) -> list[Any]:
    types = [jnp.asarray(each).dtype for each in starts if not isinstance(each, int)]
    return [jnp.asarray(each, types[0]) for each in starts]
