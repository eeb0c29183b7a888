"""Lowering of a jaxpr to an ONNX graph, with inlined calls and unrolled scans; `rules.py` has the operators.

The names of nodes begin with JAX's scopes (`layers_0/attention/MatMul`), so that an engine's layers can be mapped back.
Values that depend only on constants are computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from jax.extend import core

from memprof.errors import MemprofError
from memprof.sources.jax.exporting.onnx_graph import Graph
from memprof.sources.jax.exporting.rules import RULES, Known, Operation, Place, Value
from memprof.sources.jax.tracing import jit_adapter

_MAX_CONSTANT_ELEMENTS = 1 << 16  # the model computes larger ones
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(frozen=True, slots=True)
class Lowering:
    """Adds the operations of jaxprs to a graph."""

    graph: Graph

    def jaxpr(self, closed: core.ClosedJaxpr, args: Sequence[Known], scope: str = "") -> list[Known]:
        """Add the operations that the results of a jaxpr need.

        Args:
            args: values of the graph, or arrays.
            scope: the scopes around it.

        Raises:
            MemprofError: a primitive has no rule.
        """
        jaxpr, consts = closed.jaxpr, [np.asarray(each) for each in closed.consts]
        known: dict[Any, Known] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))

        def value(atom: Any) -> Known:
            return np.asarray(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in _needed(jaxpr):
            inside = "/".join(part for part in (scope, str(equation.source_info.name_stack)) if part)
            results = self._equation(equation, [value(atom) for atom in equation.invars], inside)
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, values: list[Known], scope: str) -> list[Known]:
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, values, scope)
        inner = next((equation.params[key] for key in _CALLS if key in equation.params), None)
        if inner is not None and name not in ("while", "shard_map"):
            closed = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
            return self.jaxpr(closed, values, scope)
        num_elements = sum(prod(var.aval.shape) for var in equation.outvars)
        if num_elements <= _MAX_CONSTANT_ELEMENTS and not any(isinstance(each, Value) for each in values):
            return [np.asarray(each) for each in jit_adapter.bound(equation, values, equation.params)]
        if name not in RULES:
            where = f" in {scope}" if scope else ""
            raise MemprofError(
                f"the export to ONNX has no operator for JAX's primitive {name}{where}: leave out the technique or "
                "setting that introduces it"
            )
        found = RULES[name](Operation(graph=self.graph, scope=scope, equation=equation, values=values))
        return found if isinstance(found, list) else [found]

    def _scan(self, equation: Any, values: list[Known], scope: str) -> list[Known]:
        """Unroll a loop. The scopes of its iterations are numbered."""
        body, length, is_reverse = (equation.params[name] for name in ("jaxpr", "length", "reverse"))
        num_consts, num_carry = jit_adapter.scan_layout(equation)
        first_stacked = num_consts + num_carry
        consts, carry = values[:num_consts], values[num_consts:first_stacked]
        turns: list[list[Known]] = []
        for number in reversed(range(length)) if is_reverse else range(length):
            inside = f"{scope or 'loop'}_{number}"
            pieces = [
                self._piece(each, number, tuple(var.aval.shape), inside)
                for each, var in zip(values[first_stacked:], equation.invars[first_stacked:], strict=True)
            ]
            results = self.jaxpr(body, [*consts, *carry, *pieces], inside)
            carry = results[:num_carry]
            turns.append(results[num_carry:])
        if is_reverse:
            turns.reverse()
        place, stacks = Place(graph=self.graph, scope=scope), zip(*turns, strict=True)
        rows = zip(stacks, body.jaxpr.outvars[num_carry:], strict=True)
        return [*carry, *(place.stacked(pieces, tuple(var.aval.shape)) for pieces, var in rows)]

    def _piece(self, known: Known, number: int, shape: tuple[int, ...], scope: str) -> Known:
        if not isinstance(known, Value):
            return known[number]
        place = Place(graph=self.graph, scope=scope)
        index = place.numbers(number)
        return Value(place.node("Gather", place.whole(known, shape), index, axis=0), shape[1:])


def _needed(jaxpr: core.Jaxpr) -> list[Any]:
    """Return the equations that a result depends on, in order."""
    read, needed = {id(atom) for atom in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in read for var in equation.outvars):
            read.update(id(atom) for atom in equation.invars)
            needed.append(equation)
    return needed[::-1]
