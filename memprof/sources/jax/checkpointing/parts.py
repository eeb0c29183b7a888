"""Replace some equations of a step, including those within its scans, checkpoints and `shard_map`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.apply import differentiated_as
from memprof.sources.jax.checkpointing.closed_over import with_makers
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.early_reads import Chosen, LateRead, with_early_reads
from memprof.sources.jax.checkpointing.evaluation import Flat, bind, value_of, without_jits
from memprof.sources.jax.checkpointing.reevaluation import reevaluated
from memprof.sources.jax.tracing.jit_adapter import CHECKPOINTS, bound_shards, scan_layout


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


_NONE: Mapping[Any, Any] = {}
# Finds the parts of a function without jits. No two share an equation.
Find = Callable[[core.Jaxpr, Constants], Sequence[Part]]


def with_parts(step: Callable[..., Any], find: Find, *, early: Chosen = LateRead.is_slice) -> Callable[..., Any]:
    """Return a step with its parts replaced, in the functions that it differentiates and outside of derivatives.

    Args:
        early: decides which reads of products are moved to their operands before.

    Raises:
        MemprofError: a framework has jitted the step.
    """

    def evaluate(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        return _Replacement(_outside_derivatives(find), early, _is_in_derivative).function(closed)(*args)

    def differentiated(closed: core.ClosedJaxpr) -> Flat:
        extended, made = with_makers(without_jits(closed))
        return _Replacement(find, early).function(extended, made=made)

    return reevaluated(step, evaluate, around=lambda: differentiated_as(differentiated))


def with_only_read_rows(step: Callable[..., Any], found: list[LateRead] | None = None) -> Callable[..., Any]:
    """Return a step whose large products compute only the rows that are read.

    Args:
        found: when the step is traced, the reads of few rows are added to this list.

    Raises:
        MemprofError: a framework has jitted the step.
    """

    def early(late: LateRead) -> bool:
        if late.is_of_few_rows() and found is not None:
            found.append(late)
        return late.is_of_few_rows()

    return with_parts(step, lambda jaxpr, constants: [], early=early)


def with_replaced(closed: core.ClosedJaxpr, find: Find) -> Flat:
    """Return a function without jits with its parts replaced."""
    return _Replacement(find).function(closed)


def _outside_derivatives(find: Find) -> Find:
    """Return a search of only those equations of a function that are not in a derivative."""

    def found(jaxpr: core.Jaxpr, constants: Constants) -> list[Part]:
        numbers = [number for number, each in enumerate(jaxpr.eqns) if not _is_in_derivative(each)]
        inner = _with_equations(jaxpr, numbers)

        def outer(part: Part) -> Part:
            own = frozenset(numbers[number] for number in part.own)
            return replace(part, own=own, evaluate=lambda _, known: part.evaluate(inner, known))

        return [outer(part) for part in find(inner, constants)]

    return found


def _with_equations(jaxpr: core.Jaxpr, numbers: Sequence[int]) -> core.Jaxpr:
    """Return a function of some of the equations. Its results are the variables that are read elsewhere."""
    kept = {*numbers}
    own = [jaxpr.eqns[number] for number in numbers]
    others = [each for number, each in enumerate(jaxpr.eqns) if number not in kept]
    read = {atom for each in others for atom in each.invars if isinstance(atom, core.Var)}
    read.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    made_elsewhere = [var for each in others for var in each.outvars]
    return jaxpr.replace(
        invars=[*jaxpr.invars, *made_elsewhere],
        outvars=[var for each in own for var in each.outvars if var in read],
        eqns=own,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )


def _is_in_derivative(equation: Any) -> bool:
    """Whether an equation belongs to a derivative, by its name: `jvp(Net)/dot_general`, `transpose(jvp(Net))/mul`."""
    return "jvp(" in str(equation.source_info.name_stack)


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Replaces the parts of functions.

    Attributes:
        early: see `with_parts`.
        is_left: whether an equation stays unchanged, with the functions within it.
    """

    find: Find
    early: Chosen = LateRead.is_slice
    is_left: Callable[[Any], bool] = lambda equation: False
    constants: Constants = field(default_factory=Constants)

    def function(self, closed: core.ClosedJaxpr, given: Sequence[Any] = (), made: Mapping[Any, Any] = _NONE) -> Flat:
        """Return a function without jits with its parts replaced, including those of functions within it.

        Args:
            given: the outer variables passed as its first inputs.
            made: values of variables that are known although equations make them.
        """
        jaxpr = with_early_reads(closed.jaxpr, self.early, self.is_left)
        closed = core.ClosedJaxpr(jaxpr, closed.consts)
        self.constants.add(closed, given)
        parts = self.find(jaxpr, self.constants)
        of_part = {number for part in parts for number in part.own}
        first = {min(part.own): part for part in parts}
        needed = _needed(jaxpr, parts, made) if made else range(len(jaxpr.eqns))

        def evaluate(*args: Any) -> list[Any]:
            known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
            known.update(zip(jaxpr.invars, args, strict=True))
            known.update(made)
            pending = [number for number in needed if number in first or number not in of_part]
            while pending:  # the inputs of a part may be made after its first equation
                deferred: list[int] = []
                for number in pending:
                    part = first.get(number)
                    read = jaxpr.eqns[number].invars if part is None else part.reads
                    if any(isinstance(atom, core.Var) and atom not in known for atom in read):
                        deferred.append(number)
                    elif part is None:
                        self._evaluate(jaxpr.eqns[number], known)
                    else:
                        part.evaluate(jaxpr, known)
                assert len(deferred) < len(pending), "a part reads a value made from its own result"
                pending = deferred
            return [value_of(atom, known) for atom in jaxpr.outvars]

        return evaluate

    def _evaluate(self, equation: Any, known: dict[Any, Any]) -> None:
        name, params = equation.primitive.name, equation.params
        if self.is_left(equation):
            bind(equation, known, params)
        elif name == "scan":
            body = without_jits(params["jaxpr"])
            num_consts, _ = scan_layout(equation)
            changed = jax.make_jaxpr(self.function(body, equation.invars[:num_consts]))(*body.in_avals)
            bind(equation, known, {**params, "jaxpr": changed})
        elif name in CHECKPOINTS:
            inner = self.function(without_jits(core.ClosedJaxpr(params["jaxpr"], ())), equation.invars)
            again = jax.checkpoint(inner, policy=params["policy"], prevent_cse=params["prevent_cse"])
            results = again(*[value_of(atom, known) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        elif name == "shard_map":
            values = [value_of(atom, known) for atom in equation.invars]
            results = bound_shards(equation, partial(self._of_shards, params["jaxpr"]), values)
            known.update(zip(equation.outvars, results, strict=True))
        else:
            bind(equation, known, params)

    def _of_shards(self, jaxpr: core.Jaxpr, *shards: Any) -> list[Any]:
        """Evaluate the body of a `shard_map`, whose axes must be known while its jits are inlined."""
        return self.function(without_jits(core.ClosedJaxpr(jaxpr, ())))(*shards)


def _needed(jaxpr: core.Jaxpr, parts: Sequence[Part], made: Mapping[Any, Any]) -> list[int]:
    """Return the indices of the equations in parts, and of the others that are evaluated where `made` is known."""
    part_of = {number: part for part in parts for number in part.own}
    read = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    needed: list[int] = []
    for number, equation in reversed([*enumerate(jaxpr.eqns)]):
        part = part_of.get(number)
        if part is not None or equation.effects or any(var in read and var not in made for var in equation.outvars):
            needed.append(number)
            inputs = equation.invars if part is None else part.reads
            read.update(atom for atom in inputs if isinstance(atom, core.Var))
    return needed[::-1]
