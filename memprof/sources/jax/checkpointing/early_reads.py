"""Read an operand of a large product in place of the product.

Many losses drop the last token of the logits: `(h @ head)[:, :-1]`. The slice mixes the tokens, so no chunk of tokens
can be computed on its own. `h[:, :-1] @ head` is the same array, and its tokens are separate. And a step that reads the
logits of one token of each prompt needs no others: `(h @ head)[:, lengths - 1]` is `h[:, lengths - 1] @ head`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.evaluation import evaluated_rows
from memprof.sources.jax.checkpointing.products import Graph, large_products, possible_rows, size_of
from memprof.sources.jax.checkpointing.reads import Read, is_read, read_of
from memprof.sources.jax.checkpointing.rows import Axis, Rows, rows_behind, rows_of

_FEW = 0.5  # of the rows of a product


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRead:
    """Equal reads of some rows of a product, or of an array that is made from the product alone.

    Attributes:
        product: the product.
        axes: the axes of the array whose entries can be read before the product.
        rows: for the equations from the product to the array, by index, in order: their row axes for each of `axes`.
        numbers: the indices of the reads.
    """

    product: Any
    read: Read
    axes: tuple[int, ...]
    rows: dict[int, tuple[Rows, ...]]
    numbers: tuple[int, ...]

    @property
    def unread_bytes(self) -> int:
        """The bytes of the product that are not read."""
        product = self.product.outvars[0].aval
        return int((1 - self.read.share(self.axes)) * product.size * product.dtype.itemsize)

    def is_slice(self) -> bool:
        """Whether it is a slice with known places. XLA may move it itself, so it hardly saves memory alone."""
        return self.read.has_known_places

    def is_of_few_rows(self) -> bool:
        """Whether most of the product is not read."""
        return self.read.share(self.axes) < _FEW


Chosen = Callable[[LateRead], bool]


def with_early_reads(jaxpr: core.Jaxpr, chosen: Chosen, is_left: Callable[[Any], bool]) -> core.Jaxpr:
    """Return the same function with some reads of its large products moved to their operands.

    Variables keep their names.

    Args:
        chosen: decides which reads are moved.
        is_left: whether an equation must not change.
    """
    found = next(_late_reads(jaxpr, chosen, is_left), None)
    while found is not None:
        jaxpr = _made_early(jaxpr, found)
        found = next(_late_reads(jaxpr, chosen, is_left), None)
    return jaxpr


def _late_reads(jaxpr: core.Jaxpr, chosen: Chosen, is_left: Callable[[Any], bool]) -> Iterator[LateRead]:
    """Yield the reads of large products that have no other readers."""
    if not any(map(is_read, jaxpr.eqns)):
        return
    graph = Graph(jaxpr)
    for number in large_products(jaxpr):
        found = _late_read(graph, number)
        if found is None or any(is_left(jaxpr.eqns[each]) for each in (*found.rows, *found.numbers)):
            continue
        if chosen(found):
            yield found


def _late_read(graph: Graph, product: int) -> LateRead | None:
    """Return the reads of a product's rows, or of what is made from the product alone; None if there are none."""
    (var,) = graph.equations[product].outvars
    rows = {
        axis: {product: each} for each in possible_rows(graph.equations[product]) if (axis := each.result) is not None
    }
    while rows and var not in graph.results:
        numbers = tuple(graph.readers[var])
        readers = [graph.equations[each] for each in numbers]
        read = read_of(readers, var)
        axes = () if read is None else tuple(axis for axis in read.kept if axis in rows)
        if read is not None and axes and read.needed.issubset(axes) and read.share(axes) < 1:
            of_each = {number: tuple(rows[axis][number] for axis in axes) for number in rows[axes[0]]}
            return LateRead(product=graph.equations[product], read=read, axes=axes, rows=of_each, numbers=numbers)
        if len(readers) != 1 or len(readers[0].outvars) != 1:
            break
        rows = _followed(readers[0], var, rows, numbers[0])
        (var,) = readers[0].outvars
    return None


def _followed(
    equation: Any, var: core.Var, rows: dict[int, dict[int, Rows]], number: int
) -> dict[int, dict[int, Rows]]:
    """Return the row axes of an equation's result, each with those of the equations up to it, given those of `var`."""
    found: dict[int, dict[int, Rows]] = {}
    for axis, before in rows.items():
        num_rows = var.aval.shape[axis]
        here = rows_of(equation, [axis if atom is var else None for atom in equation.invars], num_rows)
        if here is None or here.result is None:
            continue
        if equation.outvars[0].aval.shape[here.result] == num_rows:  # otherwise a row would take several entries
            found[here.result] = {**before, number: here}
    return found


def _made_early(jaxpr: core.Jaxpr, late: LateRead) -> core.Jaxpr:
    """Return the same function with the reads of a product's rows moved to its operand."""
    first, *others = (jaxpr.eqns[number] for number in late.numbers)
    inputs, evaluate = _early(jaxpr, late)
    made = jax.make_jaxpr(evaluate)(*[var.aval for var in inputs]).jaxpr
    names = dict(zip(made.invars, inputs, strict=True)) | {made.outvars[0]: first.outvars[0]}
    early = [_renamed(each, names) for each in made.eqns]
    same = {each.outvars[0]: first.outvars[0] for each in others}
    equations: list[Any] = []
    for number, equation in enumerate(jaxpr.eqns):
        if number == late.numbers[0]:
            equations += early
        elif number not in late.rows and number not in late.numbers:
            equations.append(_renamed(equation, same))
    outvars = [same.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in jaxpr.outvars]
    return jaxpr.replace(eqns=equations, outvars=outvars)


def _early(jaxpr: core.Jaxpr, late: LateRead) -> tuple[list[core.Var], Callable[..., Any]]:
    """Return the inputs of a late read's product, and a function that reads them first and computes the same result."""
    rows, read = dict(late.rows), late.read
    source = read.equation.invars[0]
    parts = [(read.kept[axis], source.aval.shape[axis]) for axis in late.axes]
    inputs = _inputs(jaxpr, late, rows)
    indices = read.equation.invars[1:]
    variables = [
        *dict.fromkeys([*(var for var, _ in inputs), *(each for each in indices if isinstance(each, core.Var))])
    ]

    def evaluate(*values: Any) -> Any:
        known = dict(zip(variables, values, strict=True))

        def compute(*arrays: Any) -> Any:
            return evaluated_rows(jaxpr, rows, dict(zip(inputs, arrays, strict=True)), parts)[source]

        return read.evaluated(
            compute,
            [known[var] for var, _ in inputs],
            [dict(zip(late.axes, axes, strict=True)) for _, axes in inputs],
            [known[each] if isinstance(each, core.Var) else each.val for each in indices],
        )

    return variables, evaluate


def _inputs(
    jaxpr: core.Jaxpr, late: LateRead, rows: dict[int, tuple[Rows, ...]]
) -> list[tuple[core.Var, tuple[Axis, ...]]]:
    """Return the variables from outside that equations read, with their row axes.

    Equations that repeat an array for all rows, such as a bias, are added to `rows`.
    """
    graph = Graph(jaxpr)
    made = {var for number in rows for var in jaxpr.eqns[number].outvars}
    inputs: dict[tuple[core.Var, tuple[Axis, ...]], None] = {}
    pending = [*rows]
    while pending:
        number = pending.pop()
        for place, atom in enumerate(jaxpr.eqns[number].invars):
            axes = tuple(each.inputs[place] for each in rows[number])
            if not isinstance(atom, core.Var) or atom in made:
                continue
            maker, behind = graph.maker.get(atom), None
            if maker is not None and size_of(atom) >= size_of(late.product.outvars[0]):
                behind = _behind(jaxpr.eqns[maker], axes)
            if maker is None or behind is None or rows.get(maker, behind) != behind:
                inputs[atom, axes] = None
            elif maker not in rows:
                rows[maker] = behind
                pending.append(maker)
    return [*inputs]


def _behind(equation: Any, axes: tuple[Axis, ...]) -> tuple[Rows, ...] | None:
    """Return the row axes of an equation whose result has its rows along some axes, or None if unknown."""
    found = [None if axis is None else rows_behind(equation, axis) for axis in axes]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(axes) else None


def _renamed(equation: Any, names: dict[Any, Any]) -> Any:
    invars = [names.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in equation.invars]
    return equation.replace(invars=invars, outvars=[names.get(var, var) for var in equation.outvars])
