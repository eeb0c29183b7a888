"""Compute losses and attentions one chunk of rows at a time, in an unmodified step.

Large arrays exist for one chunk at a time: a scan runs over the chunks, with `jax.checkpoint` around its body, so the
backward pass recomputes each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.rewrites import InChunks
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.evaluation import evaluated_rows
from memprof.sources.jax.checkpointing.parts import Part, with_parts, with_replaced
from memprof.sources.jax.checkpointing.regions import Kind, Region, find_regions
from memprof.sources.jax.checkpointing.rows import Axis


def chunked(step: Callable[..., Any], chunks: InChunks, found: list[Region] | None = None) -> Callable[..., Any]:
    """Return a step that computes regions in chunks.

    Args:
        found: when the step is traced, its regions are added to this list.

    Raises:
        MemprofError: a framework has jitted the step.
    """
    num_parts = {Kind.LOSS: chunks.loss, Kind.ATTENTION: chunks.attention}

    def find(jaxpr: core.Jaxpr, _: Constants) -> list[Part]:
        regions = [each for each in find_regions(jaxpr) if num_parts[each.kind] > 1]
        if found is not None:
            found.extend(regions)
        return [_part_of(each, num_parts[each.kind], interleaved=chunks.interleaved) for each in regions]

    return with_parts(step, find)


def _part_of(region: Region, num_parts: int, *, interleaved: bool) -> Part:
    return Part(
        own=region.own,
        reads=[var for var, _ in region.inputs],
        evaluate=partial(_evaluate_in_chunks, region=region, num_parts=num_parts, interleaved=interleaved),
    )


def _evaluate_in_chunks(
    jaxpr: core.Jaxpr, known: dict[Any, Any], *, region: Region, num_parts: int, interleaved: bool
) -> None:
    """Evaluate a region in chunks of equally many rows, and the remaining rows at the end.

    If a row takes several entries, such as the tokens of an example, all examples are divided along these, if possible.
    """
    if region.has_groups and _evaluate_along_entries(jaxpr, known, region, num_parts, interleaved=interleaved):
        return
    num_rows = -(-region.num_rows // num_parts)
    num_whole = region.num_rows // num_rows
    end = num_whole * num_rows
    divided = [(var, axis) for var, axis in region.inputs if axis is not None]
    shared: dict[tuple[Any, Axis], Any] = {(var, None): known[var] for var, axis in region.inputs if axis is None}

    def part(num_rows: int, rows: Sequence[Any]) -> list[Any]:
        values = {**shared}
        values.update(zip(divided, rows, strict=True))
        return _evaluate_rows(jaxpr, region, values, num_rows)

    def iteration(_: None, rows: Sequence[Any]) -> tuple[None, list[Any]]:
        return None, jax.checkpoint(partial(part, num_rows), prevent_cse=False)(rows)

    def length(var: Any, axis: int, rows: int) -> int:
        """Return how many entries along an axis this many rows take."""
        return int(var.aval.shape[axis]) // region.num_rows * rows

    stack = _Stack(num_parts=num_whole, num_rows=num_rows, interleaved=interleaved)
    stacked = [stack.stacked(known[var], axis, length(var, axis, 1)) for var, axis in divided]
    _, found = jax.lax.scan(iteration, None, stacked)
    rest: list[Any] = []
    if end < region.num_rows:
        tails = [jax.lax.slice_in_dim(known[var], length(var, axis, end), None, axis=axis) for var, axis in divided]
        rest = jax.checkpoint(partial(part, region.num_rows - end))(tails)
    for number, (var, axis) in enumerate(region.outputs):
        known[var] = stack.joined(found[number], axis, rest[number : number + 1])


def _evaluate_along_entries(
    jaxpr: core.Jaxpr, known: dict[Any, Any], region: Region, num_parts: int, *, interleaved: bool
) -> bool:
    """Evaluate a region for all rows at once, in chunks of the entries of each row; return whether that is possible."""
    divided = [(var, axis) for var, axis in region.inputs if axis is not None]
    shared: dict[tuple[Any, Axis], Any] = {(var, None): known[var] for var, axis in region.inputs if axis is None}
    axes = [axis for _, axis in region.outputs]

    def one_row(*rows: Any) -> list[Any]:
        return _evaluate_rows(jaxpr, region, {**shared, **dict(zip(divided, rows, strict=True))}, 1)

    def every_row(*arrays: Any) -> list[Any]:
        rows = [_in_rows(array, axis, region.num_rows) for array, (_, axis) in zip(arrays, divided, strict=True)]
        found = jax.vmap(one_row, in_axes=tuple(axis for _, axis in divided), out_axes=[axis or 0 for axis in axes])(
            *rows
        )
        return [_joined_rows(each, axis) for each, axis in zip(found, axes, strict=True)]

    def find(jaxpr: core.Jaxpr, _: Constants) -> list[Part]:
        found = [each for each in find_regions(jaxpr) if each.kind is region.kind and not each.has_groups]
        regions.extend(found)
        return [_part_of(each, num_parts, interleaved=interleaved) for each in found]

    regions: list[Region] = []
    arrays = [known[var] for var, _ in divided]
    evaluate = with_replaced(jax.make_jaxpr(every_row)(*arrays), find)
    if not regions:
        return False
    known.update((var, result) for (var, _), result in zip(region.outputs, evaluate(*arrays), strict=True))
    return True


def _in_rows(array: Any, axis: int, num_rows: int) -> Any:
    """Return an array with an axis of the rows before that of their entries."""
    return array.reshape(*array.shape[:axis], num_rows, -1, *array.shape[axis + 1 :])


def _joined_rows(array: Any, axis: Axis) -> Any:
    """Join the rows of a result, or sum them if the result has no row axis."""
    if axis is None:
        return array.sum(0, dtype=array.dtype)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def _evaluate_rows(jaxpr: core.Jaxpr, region: Region, inputs: dict[tuple[Any, Axis], Any], num_rows: int) -> list[Any]:
    """Evaluate a region for a part of its rows."""
    rows = {number: (each,) for number, each in region.rows.items()}
    made = evaluated_rows(
        jaxpr, rows, {(var, (axis,)): each for (var, axis), each in inputs.items()}, [(num_rows, region.num_rows)]
    )
    return [made[var] for var, _ in region.outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """Chunks along a new first axis.

    Attributes:
        num_rows: the number of rows of a chunk.
        interleaved: whether a chunk takes every `num_parts`-th row.
    """

    num_parts: int
    num_rows: int
    interleaved: bool

    def stacked(self, array: Any, axis: int, width: int) -> Any:
        """Return the chunks of an array, each of whose rows takes `width` entries of an axis."""
        num_rows, num_parts = self.num_rows, self.num_parts
        whole = jax.lax.slice_in_dim(array, 0, num_parts * num_rows * width, axis=axis)
        before, after = whole.shape[:axis], whole.shape[axis + 1 :]
        middle = (num_rows, num_parts) if self.interleaved else (num_parts, num_rows)
        parts = jnp.moveaxis(whole.reshape(*before, *middle, width, *after), axis + self.interleaved, 0)
        return parts.reshape(num_parts, *before, num_rows * width, *after)

    def joined(self, parts: Any, axis: Axis, rest: Sequence[Any]) -> Any:
        """Join the chunks of a result into one array, or sum them if the result has no row axis."""
        if axis is None:
            return sum(rest, start=parts.sum(0, dtype=parts.dtype))
        before, after = parts.shape[1 : axis + 1], parts.shape[axis + 2 :]
        rows = parts.reshape(self.num_parts, *before, self.num_rows, -1, *after)
        whole = jnp.moveaxis(rows, 0, axis + self.interleaved).reshape(*before, -1, *after)
        return jnp.concatenate([whole, *rest], axis=axis)
