"""Slice an operand of a large product in place of the product.

Many losses drop the last token of the logits: `(h @ head)[:, :-1]`. The slice mixes the tokens, so no chunk of tokens
can be computed on its own. `h[:, :-1] @ head` is the same array, and its tokens are separate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.evaluation import evaluated_rows
from memprof.sources.jax.checkpointing.products import Graph, large_products, possible_rows, size_of
from memprof.sources.jax.checkpointing.rows import Rows, rows_behind, rows_of

_SLICE = "slice"


def with_early_slices(jaxpr: core.Jaxpr, is_left: Callable[[Any], bool] = lambda equation: False) -> core.Jaxpr:
    """Return the same function with slices of its large products moved to their operands. Variables keep their names.

    Args:
        is_left: whether an equation must not change.
    """
    found = next(_late_slices(jaxpr, is_left), None)
    while found is not None:
        jaxpr = _made_early(jaxpr, found)
        found = next(_late_slices(jaxpr, is_left), None)
    return jaxpr


@dataclass(frozen=True, slots=True, kw_only=True)
class _LateSlice:
    """Equal slices along the rows of a product.

    Attributes:
        rows: the row axes of the equations from the product to the array that is sliced, by index, in order.
        slices: the indices of the slices.
        axis: the row axis of the array that is sliced.
    """

    rows: dict[int, Rows]
    slices: tuple[int, ...]
    axis: int


def _late_slices(jaxpr: core.Jaxpr, is_left: Callable[[Any], bool]) -> Iterator[_LateSlice]:
    """Yield the slices of large products that only they read."""
    if not any(_cuts(each) for each in jaxpr.eqns):
        return
    graph = Graph(jaxpr)
    for number in large_products(jaxpr):
        for rows in possible_rows(jaxpr.eqns[number]):
            found = _late_slice(graph, number, rows)
            if found is not None and not any(is_left(jaxpr.eqns[each]) for each in (*found.rows, *found.slices)):
                yield found


def _late_slice(graph: Graph, number: int, rows: Rows) -> _LateSlice | None:
    """Return the slices of a product's rows, or of what is made from the product alone; None if there are none."""
    found = {number: rows}
    (var,), axis = graph.equations[number].outvars, rows.result
    assert axis is not None
    num_rows = var.aval.shape[axis]
    while var not in graph.results:
        readers = [graph.equations[each] for each in graph.readers[var]]
        if readers and all(axis in _cuts(each) and each.params == readers[0].params for each in readers):
            return _LateSlice(rows=found, slices=tuple(graph.readers[var]), axis=axis)
        if len(readers) != 1 or len(readers[0].outvars) != 1:
            break
        (following,) = graph.readers[var]
        of_reader = rows_of(readers[0], [axis if atom is var else None for atom in readers[0].invars], num_rows)
        if of_reader is None or of_reader.result is None:
            break
        found[following] = of_reader
        (var,), axis = readers[0].outvars, of_reader.result
        if var.aval.shape[axis] != num_rows:  # a row takes several entries
            break
    return None


def _cuts(equation: Any) -> dict[int, tuple[int, int, int]]:
    """Return the axes of which an equation takes a slice, each with its start, limit and stride."""
    if equation.primitive.name != _SLICE:
        return {}
    params, shape = equation.params, equation.invars[0].aval.shape
    strides = params["strides"] or (1,) * len(shape)
    cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return {axis: cut for axis, (cut, size) in enumerate(zip(cuts, shape, strict=True)) if cut != (0, size, 1)}


def _made_early(jaxpr: core.Jaxpr, late: _LateSlice) -> core.Jaxpr:
    """Return the same function with the slices of a product's rows moved to its operand."""
    first, *others = (jaxpr.eqns[number] for number in late.slices)
    evaluate, inputs = _sliced(jaxpr, late)
    made = jax.make_jaxpr(evaluate)(*[var.aval for var in inputs]).jaxpr
    names = dict(zip(made.invars, inputs, strict=True)) | {made.outvars[0]: first.outvars[0]}
    early = [_renamed(each, names) for each in made.eqns]
    same = {each.outvars[0]: first.outvars[0] for each in others}
    equations: list[Any] = []
    for number, equation in enumerate(jaxpr.eqns):
        if number == late.slices[0]:
            equations += early
        elif number not in late.rows and number not in late.slices:
            equations.append(_renamed(equation, same))
    outvars = [same.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in jaxpr.outvars]
    return jaxpr.replace(eqns=equations, outvars=outvars)


def _sliced(jaxpr: core.Jaxpr, late: _LateSlice) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function that computes the slice from slices of the rows, and its inputs."""
    graph, rows = Graph(jaxpr), dict(late.rows)
    (product, *_), sliced = late.rows, jaxpr.eqns[late.slices[0]]
    start, limit, stride = _cuts(sliced)[late.axis]
    num_rows = sliced.invars[0].aval.shape[late.axis]
    made = {var for number in late.rows for var in jaxpr.eqns[number].outvars}
    inputs: dict[tuple[Any, int | None], None] = {}
    pending = [*late.rows]
    while pending:
        number = pending.pop()
        for atom, axis in zip(jaxpr.eqns[number].invars, rows[number].inputs, strict=True):
            if not isinstance(atom, core.Var) or atom in made:
                continue
            maker, behind = graph.maker.get(atom), None
            is_large = size_of(atom) >= size_of(jaxpr.eqns[product].outvars[0])  # such as a bias, repeated for all rows
            if maker is not None and axis is not None and is_large:
                behind = rows_behind(jaxpr.eqns[maker], axis)
            if maker is None or behind is None or rows.get(maker, behind) != behind:
                inputs[atom, axis] = None
            elif maker not in rows:
                rows[maker] = behind
                pending.append(maker)

    def evaluate(*arrays: Any) -> Any:
        whole = dict(zip(variables, arrays, strict=True))
        cut = {
            (var, axis): whole[var] if axis is None else jax.lax.slice_in_dim(whole[var], start, limit, stride, axis)
            for var, axis in inputs
        }
        num_kept = len(range(start, limit, stride))
        result = evaluated_rows(jaxpr, rows, cut, part=num_kept, num_rows=num_rows)[sliced.invars[0]]
        for axis, (low, high, step) in _cuts(sliced).items():
            if axis != late.axis:
                result = jax.lax.slice_in_dim(result, low, high, step, axis)
        return result

    variables = [*dict.fromkeys(var for var, _ in inputs)]
    return evaluate, variables


def _renamed(equation: Any, names: dict[Any, Any]) -> Any:
    invars = [names.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in equation.invars]
    return equation.replace(invars=invars, outvars=[names.get(var, var) for var in equation.outvars])
