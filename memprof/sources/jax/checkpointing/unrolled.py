"""Hold layer state, such as a KV cache, as one array per layer, and unroll the scans over layers.

A scan that reads and writes one array of all layers makes XLA hold the array twice. If the layers run one after
another, each updates its own array in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.evaluation import as_function, bind, value_of, without_jits
from memprof.sources.jax.checkpointing.reevaluation import reevaluated
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import is_array


@jax.tree_util.register_pytree_with_keys_class
class Layers:
    """An array of all layers as one array for each layer: a pytree of these arrays."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: Iterable[Any]) -> None:
        self.arrays = tuple(arrays)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        """Return the arrays with their numbers."""
        return [(jax.tree_util.SequenceKey(number), array) for number, array in enumerate(self.arrays)], None

    @classmethod
    def tree_unflatten(cls, _: None, arrays: Iterable[Any]) -> Layers:
        """Return `Layers` of these arrays."""
        return cls(arrays)

    def whole(self) -> Any:
        """Return one array of all layers."""
        return jnp.stack(self.arrays)


def in_layers(tree: Any, num_layers: int) -> Any:
    """Return a tree whose arrays with that many layers along their first axis are `Layers`.

    Args:
        tree: a pytree of arrays, or of `jax.ShapeDtypeStruct`.
    """

    def split(leaf: Any) -> Any:
        if not is_array(leaf) or not leaf.shape or leaf.shape[0] != num_layers:
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return Layers([jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)] * num_layers)
        return Layers(leaf[number] for number in range(num_layers))

    return jax.tree.map(split, tree)


def stacked(tree: Any) -> Any:
    """Return a tree with one array in place of all `Layers`."""
    return jax.tree.map(lambda leaf: leaf.whole() if _is_layers(leaf) else leaf, tree, is_leaf=_is_layers)


def updated_by_loops(closed: core.ClosedJaxpr) -> dict[int, int]:
    """Return the inputs of a function that only one scan reads, layer by layer, and returns with new values.

    Returns:
        The number of layers by the number of the input.
    """
    closed = without_jits(closed)
    inputs, results = closed.jaxpr.invars, {atom for atom in closed.jaxpr.outvars if isinstance(atom, core.Var)}
    loops = [each for each in closed.jaxpr.eqns if each.primitive.name == "scan"]
    readers = [atom for each in closed.jaxpr.eqns for atom in each.invars if isinstance(atom, core.Var)]
    found: dict[int, int] = {}
    for equation in loops:
        num_consts, num_carried = jit_adapter.scan_layout(equation)
        made = [var.aval for var in equation.outvars[num_carried:] if var in results]
        for var in equation.invars[num_consts + num_carried :]:
            kinds = [(aval.shape, aval.dtype) for aval in made]
            if var in inputs and readers.count(var) == 1 and (var.aval.shape, var.aval.dtype) in kinds:
                made.pop(kinds.index((var.aval.shape, var.aval.dtype)))
                found[inputs.index(var)] = int(equation.params["length"])
    return found


def unrolled(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that takes and returns `Layers` in place of the arrays that its scans read layer by layer.

    These scans are evaluated one layer after another.
    """
    return reevaluated(step, _evaluate_unrolled, is_leaf=_is_layers, whole=stacked)


def _evaluate_unrolled(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    layer_arrays = {var: arg.arrays for var, arg in zip(jaxpr.invars, args, strict=True) if _is_layers(arg)}
    kinds = {(var.aval.shape, var.aval.dtype) for var in layer_arrays}
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update((var, stacked(arg)) for var, arg in zip(jaxpr.invars, args, strict=True))
    layers: dict[Any, Layers] = {}
    for equation in jaxpr.eqns:
        read = {atom for atom in equation.invars if isinstance(atom, core.Var)}
        if equation.primitive.name != "scan" or not layer_arrays.keys() & read:
            bind(equation, known, equation.params)
            continue
        carry, made = _unrolled_scan(equation, known, layer_arrays)
        num_carried = len(carry)
        known.update(zip(equation.outvars, [*carry, *map(jnp.stack, made)], strict=True))
        rows = zip(equation.outvars[num_carried:], made, strict=True)
        layers.update((var, Layers(each)) for var, each in rows if (var.aval.shape, var.aval.dtype) in kinds)
    return [
        layers[atom] if isinstance(atom, core.Var) and atom in layers else value_of(atom, known)
        for atom in jaxpr.outvars
    ]


def _unrolled_scan(
    equation: Any, known: dict[Any, Any], layer_arrays: dict[Any, Sequence[Any]]
) -> tuple[list[Any], list[list[Any]]]:
    """Evaluate a scan without a loop. Return its carry, and a list of iterations for each stacked result."""
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    params, body = equation.params, as_function(equation.params["jaxpr"])
    values = [value_of(atom, known) for atom in equation.invars]
    consts, carry = values[:num_consts], values[num_consts : num_consts + num_carried]
    rows = [
        layer_arrays[atom] if atom in layer_arrays else value_of(atom, known)
        for atom in equation.invars[num_consts + num_carried :]
    ]
    numbers = range(int(params["length"]))
    iterations: list[list[Any]] = []
    for number in reversed(numbers) if params["reverse"] else numbers:
        with jit_adapter.name_of(equation):
            results = body(*consts, *carry, *[row[number] for row in rows])
        carry = results[:num_carried]
        iterations.append(results[num_carried:])
    if params["reverse"]:
        iterations.reverse()
    return carry, [list(each) for each in zip(*iterations, strict=True)]


def _is_layers(value: Any) -> bool:
    return isinstance(value, Layers)
