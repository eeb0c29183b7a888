"""Operations that put several groups of the rows into one axis, and those that take them apart.

For example, a loss concatenates the chosen and the rejected answers of all examples, or two views of them, for a single
call of its model. The rows then lie along the axis group by group, and a part has its rows of each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from memprof.sources.jax.checkpointing.actions import Action
from memprof.sources.jax.checkpointing.pieces import Piece, State, axis_of, in_groups, num_groups
from memprof.sources.jax.checkpointing.rows import entries_before
from memprof.sources.jax.tracing import jit_adapter


def regrouped(equation: Any, states: Sequence[State], num_rows: int) -> Action | None:
    """Return the action of an equation whose results have another number of groups than its inputs; None for others.

    Args:
        num_rows: the number of rows of a group.
    """
    found = {each for each in states if axis_of(each) is not None}
    rule = _RULES.get(equation.primitive.name)
    return rule(equation, found.pop(), num_rows) if rule is not None and len(found) == 1 else None


def _concatenate(equation: Any, state: State, num_rows: int) -> Action | None:
    (axis, groups), shapes = _axis_and_groups(state), [atom.aval.shape for atom in equation.invars]
    if equation.params["dimension"] != axis or len({shape[axis] for shape in shapes}) > 1:
        return None
    result = in_groups(axis, len(shapes) * groups)
    return _action(equation, (state,) * len(shapes), (result,), {})


def _tile(equation: Any, state: State, num_rows: int) -> Action | None:
    axis, groups = _axis_and_groups(state)
    number = equation.params["reps"][axis]
    return None if number == 1 else _action(equation, (state,), (in_groups(axis, number * groups),), {})


def _slice(equation: Any, state: State, num_rows: int) -> Action | None:
    (axis, groups), params = _axis_and_groups(state), equation.params
    size = equation.invars[0].aval.shape[axis] // groups
    start, end, strides = params["start_indices"][axis], params["limit_indices"][axis], params["strides"]
    if start % size or end % size or end - start == groups * size or (strides is not None and strides[axis] != 1):
        return None
    result = in_groups(axis, (end - start) // size)
    return _action(equation, (state,), (result,), {"start_indices": axis, "limit_indices": axis})


def _split(equation: Any, state: State, num_rows: int) -> Action | None:
    (axis, groups), params = _axis_and_groups(state), equation.params
    size = equation.invars[0].aval.shape[axis] // groups
    if params["axis"] != axis or any(each % size for each in params["sizes"]):
        return None
    results = tuple(in_groups(axis, each // size) for each in params["sizes"])
    return _action(equation, (state,), results, {"sizes": None})


def _reshape(equation: Any, state: State, num_rows: int) -> Action | None:
    """Return the action of a reshape that merges the row axis with earlier axes, or splits the groups off."""
    (axis, groups), sizes = _axis_and_groups(state), equation.params["new_sizes"]
    before = entries_before(equation, axis) * groups  # sets of all rows, one after the other
    places: dict[int, int] = {}
    for place, size in enumerate(sizes):
        number, rest = divmod(before, max(prod(sizes[:place]), 1))
        if rest == 0 and size % (number * num_rows) == 0:
            places.setdefault(number, place)
    if not places or min(places) == groups:
        return None
    place = places[min(places)]
    return _action(equation, (state,), (in_groups(place, min(places)),), {"new_sizes": place})


_RULES = {"concatenate": _concatenate, "reshape": _reshape, "slice": _slice, "split": _split, "tile": _tile}


def _axis_and_groups(state: State) -> tuple[int, int]:
    axis = axis_of(state)
    assert axis is not None
    return axis, num_groups(state)


def _action(
    equation: Any, inputs: tuple[State, ...], results: tuple[State, ...], lengths: dict[str, int | None]
) -> Action:
    """Return the action of a part.

    Args:
        lengths: the parameters that hold positions or lengths along the row axis, with the index of the row axis in
            them; None: all of them are such lengths.
    """

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        params = dict(equation.params)
        for name, place in lengths.items():
            params[name] = tuple(
                each // piece.num_parts if place in (None, number) else each for number, each in enumerate(params[name])
            )
        return jit_adapter.bound(equation, [*values], params)

    return Action(inputs=inputs, results=results, run=run)
