"""Replace some equations of a function, including those within its scans and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.apply import differentiated_as
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.evaluation import Flat, bind, value_of, without_jits
from memprof.sources.jax.tracing.jit_adapter import CHECKPOINTS, scan_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Equations of a function, and another way to compute them.

    Attributes:
        own: the indices of the equations that it replaces.
        reads: the variables from outside that it reads.
        evaluate: computes its results from the known values, and stores them there.
    """

    own: frozenset[int]
    reads: Sequence[Any]
    evaluate: Callable[[core.Jaxpr, dict[Any, Any]], None]


# Finds the parts of a function without jits. No two share an equation.
Find = Callable[[core.Jaxpr, Constants], Sequence[Part]]


@contextmanager
def with_parts(find: Find) -> Iterator[None]:
    """Replace the parts of all functions that are differentiated within a `with` block."""
    with differentiated_as(lambda closed: _replaced_function(closed, find, Constants())):
        yield


def _replaced_function(closed: core.ClosedJaxpr, find: Find, constants: Constants, given: Sequence[Any] = ()) -> Flat:
    """Return a function that evaluates a jaxpr with its parts replaced, including those of its scans and checkpoints.

    Args:
        given: the outer variables passed as its first inputs.
    """
    closed = without_jits(closed)
    jaxpr = closed.jaxpr
    constants.add(closed, given)
    parts = find(jaxpr, constants)
    of_part = {number for part in parts for number in part.own}
    first = {min(part.own): part for part in parts}

    def evaluate(*args: Any) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))
        pending = [number for number in range(len(jaxpr.eqns)) if number in first or number not in of_part]
        while pending:  # the inputs of a part may be made after its first equation
            deferred: list[int] = []
            for number in pending:
                part = first.get(number)
                read = jaxpr.eqns[number].invars if part is None else part.reads
                if any(isinstance(atom, core.Var) and atom not in known for atom in read):
                    deferred.append(number)
                elif part is None:
                    _evaluate(jaxpr.eqns[number], known, find, constants)
                else:
                    part.evaluate(jaxpr, known)
            assert len(deferred) < len(pending), "a part reads a value made from its own result"
            pending = deferred
        return [value_of(atom, known) for atom in jaxpr.outvars]

    return evaluate


def _evaluate(equation: Any, known: dict[Any, Any], find: Find, constants: Constants) -> None:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        body = params["jaxpr"]
        num_consts, _ = scan_layout(equation)
        changed = jax.make_jaxpr(_replaced_function(body, find, constants, equation.invars[:num_consts]))(
            *body.in_avals
        )
        bind(equation, known, {**params, "jaxpr": changed})
    elif name in CHECKPOINTS:
        inner = _replaced_function(core.ClosedJaxpr(params["jaxpr"], ()), find, constants, equation.invars)
        again = jax.checkpoint(inner, policy=params["policy"], prevent_cse=params["prevent_cse"])
        results = again(*[value_of(atom, known) for atom in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    else:
        bind(equation, known, params)
