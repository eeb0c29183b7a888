"""Values of a function that depend on none of its inputs, such as the mask of a causal attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import core

from memprof.sources.jax.checkpointing.evaluation import value_of
from memprof.sources.jax.tracing import jit_adapter

# Constants are computed without the mesh of the step.
_OF_MESH = frozenset({"pvary", "reshard", "sharding_constraint"})  # the same values, of another type or elsewhere
_SHARDINGS = frozenset({"out_sharding", "sharding"})  # parameters


class Constants:
    """The equations that make the variables of a function and of the functions within it."""

    def __init__(self) -> None:
        self._maker: dict[Any, Any] = {}
        self._outside: dict[Any, Any] = {}  # the variable outside that an input stands for
        self._values: dict[Any, Any] = {}

    def add(self, closed: core.ClosedJaxpr, given: Sequence[Any] = ()) -> None:
        """Add a function; `given` are the outer variables passed as its first inputs."""
        self._maker.update((var, equation) for equation in closed.jaxpr.eqns for var in equation.outvars)
        self._outside.update(zip(closed.jaxpr.invars, given, strict=False))
        consts = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        self._values.update((var, value) for var, value in consts if jit_adapter.is_concrete(value))

    def maker(self, atom: Any) -> Any | None:
        """Return the equation that makes a value, looking outside of scans and checkpoints; None if there is none."""
        return None if isinstance(atom, core.Literal) else self._maker.get(self._resolved(atom))

    def holds(self, test: Callable[[Any], Any], atom: Any) -> bool:
        """Whether a value is constant and passes a test. The value is never stored whole."""
        found = self._equations(atom)
        return found is not None and bool(jit_adapter.computed_here(lambda: test(self._value(atom, found))))

    def number(self, atom: Any) -> float | None:
        """Return the number in a constant, if it is a scalar or all entries are equal; otherwise None."""
        while not isinstance(atom, core.Literal) and atom.aval.shape:
            maker = self.maker(atom)
            if maker is None or maker.primitive.name not in ("broadcast_in_dim", "convert_element_type", "reshape"):
                return None
            atom = maker.invars[0]
        found = self._equations(atom)
        return None if found is None else float(jit_adapter.computed_here(lambda: self._value(atom, found)))

    def _resolved(self, atom: Any) -> Any:
        while atom in self._outside:
            atom = self._outside[atom]
            if isinstance(atom, core.Literal):
                break
        return atom

    def _equations(self, atom: Any) -> list[Any] | None:
        """Return the equations that make a value, in order; None if it depends on an input."""
        found: dict[int, Any] = {}

        def visit(atom: Any) -> bool:
            atom = atom if isinstance(atom, core.Literal) else self._resolved(atom)
            if isinstance(atom, core.Literal) or atom in self._values:
                return True
            equation = self._maker.get(atom)
            if equation is None or equation.effects:
                return False
            if id(equation) not in found:
                if not all(map(visit, equation.invars)):
                    return False
                found[id(equation)] = equation
            return True

        return list(found.values()) if visit(atom) else None

    def _value(self, atom: Any, equations: Sequence[Any]) -> Any:
        known = dict(self._values)
        for equation in equations:
            for each in equation.invars:
                if isinstance(each, core.Var) and each not in known:
                    known[each] = value_of(self._resolved(each), known)
            results = [value_of(each, known) for each in equation.invars]
            if equation.primitive.name not in _OF_MESH:
                params = {**equation.params, **dict.fromkeys(_SHARDINGS & {*equation.params})}
                results = jit_adapter.bound(equation, results, params)  # not in the equation's context, a mesh
            known.update(zip(equation.outvars, results, strict=True))
        return value_of(atom if isinstance(atom, core.Literal) else self._resolved(atom), known)
