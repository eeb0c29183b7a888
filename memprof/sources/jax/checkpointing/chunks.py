"""Compute losses and attentions one chunk of rows at a time, in an unmodified step.

Large arrays exist for one chunk at a time: a scan runs over the chunks, with `jax.checkpoint` around its body, so the
backward pass recomputes each chunk. If there are fewer rows than chunks, such as examples of many tokens, each row is
divided again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.rewrites import InChunks
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.evaluation import bound_values, value_of
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
        return [_part_of(each, num_parts[each.kind]) for each in regions]

    return with_parts(step, find)


def _part_of(region: Region, num_parts: int) -> Part:
    return Part(
        own=region.own,
        reads=[var for var, _ in region.inputs],
        evaluate=partial(_evaluate_in_chunks, region=region, num_parts=num_parts),
    )


def _evaluate_in_chunks(jaxpr: core.Jaxpr, known: dict[Any, Any], *, region: Region, num_parts: int) -> None:
    """Evaluate a region in chunks of equally many rows, and the remaining rows at the end."""
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
        of_rows = partial(part, num_rows)
        if num_parts > region.num_rows:
            divided_again = _in_chunks(of_rows, rows, region.kind, -(-num_parts // region.num_rows))
            if divided_again is not None:
                return None, divided_again
        return None, jax.checkpoint(of_rows, prevent_cse=False)(rows)

    def length(var: Any, axis: int, rows: int) -> int:
        """Return how many entries along an axis this many rows take."""
        return int(var.aval.shape[axis]) // region.num_rows * rows

    stacked = [_stacked(known[var], axis, num_whole, length(var, axis, num_rows)) for var, axis in divided]
    _, found = jax.lax.scan(iteration, None, stacked)
    rest: list[Any] = []
    if end < region.num_rows:
        tails = [jax.lax.slice_in_dim(known[var], length(var, axis, end), None, axis=axis) for var, axis in divided]
        rest = jax.checkpoint(partial(part, region.num_rows - end))(tails)
    for number, (var, axis) in enumerate(region.outputs):
        known[var] = _joined(found[number], axis, rest[number : number + 1])


def _in_chunks(function: Callable[..., Any], rows: Sequence[Any], kind: Kind, num_parts: int) -> list[Any] | None:
    """Evaluate a function of one row in chunks of its own rows; return None if it has no such region."""

    def find(jaxpr: core.Jaxpr, _: Constants) -> list[Part]:
        regions = [each for each in find_regions(jaxpr) if each.kind is kind]
        found.extend(regions)
        return [_part_of(each, num_parts) for each in regions]

    found: list[Region] = []
    results = with_replaced(jax.make_jaxpr(function)(rows), find)(*rows)
    return results if found else None


def _evaluate_rows(jaxpr: core.Jaxpr, region: Region, inputs: dict[tuple[Any, Axis], Any], num_rows: int) -> list[Any]:
    """Evaluate a region for a part of its rows."""
    made: dict[Any, Any] = {}
    for number in region.numbers:
        equation, rows = jaxpr.eqns[number], region.rows[number]
        values = [
            inputs[atom, axis] if isinstance(atom, core.Var) and atom not in made else value_of(atom, made)
            for atom, axis in zip(equation.invars, rows.inputs, strict=True)  # one may be read by rows and whole
        ]
        params = rows.params(equation, num_rows, region.num_rows)
        made.update(zip(equation.outvars, bound_values(equation, values, params), strict=True))
    return [made[var] for var, _ in region.outputs]


def _stacked(array: Any, axis: int, num_parts: int, num_rows: int) -> Any:
    """Return the whole chunks of an array, stacked along a new first axis."""
    whole = jax.lax.slice_in_dim(array, 0, num_parts * num_rows, axis=axis)
    shape = whole.shape
    return jnp.moveaxis(whole.reshape(*shape[:axis], num_parts, num_rows, *shape[axis + 1 :]), axis, 0)


def _joined(parts: Any, axis: Axis, rest: Sequence[Any]) -> Any:
    """Join the chunks of a result into one array, or sum them if the result has no row axis."""
    if axis is None:
        return sum(rest, start=parts.sum(0, dtype=parts.dtype))
    moved = jnp.moveaxis(parts, 0, axis)
    shape = moved.shape
    return jnp.concatenate([moved.reshape(*shape[:axis], -1, *shape[axis + 2 :]), *rest], axis=axis)
