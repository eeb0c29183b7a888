"""Numbers for the values of jaxprs: values with the same number are made by the same operations from the same inputs.

So two programs whose results have the same numbers compute the same, in whatever order, and however often. Calls are
inlined: jits, checkpoints, and functions with custom derivatives, because a whole program is not differentiated again.

    numbers = ValueNumbers()
    numbers.of(first, range(3)) == numbers.of(second, range(3))

A program without an answer raises `NoNumberError`: one with side effects, or with a parameter that cannot be compared.
See value numbering in Cooper and Torczon, Engineering a Compiler, section 8.4.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from memprof.sources.jax.tracing import jit_adapter

# The parameter that holds the function of a call. Derivatives of custom rules are in a program as operations.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
          "checkpoint": "jaxpr", "remat": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
          "custom_vjp_call_jaxpr": "fun_jaxpr"}  # fmt: skip
_IMPURE = frozenset({"rng_uniform"})  # JAX records no effect of it
_UNIMPORTANT = frozenset({"name"})  # of a jit with shardings


class NoNumberError(Exception):
    """A program has side effects, or an equation with a parameter that cannot be compared."""


class ValueNumbers:
    """Numbers for the values of several programs."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Any, Hashable]] = {}  # by the identity of a value: it, and what it is equal to

    def of(self, closed: core.ClosedJaxpr, inputs: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of the results of a program.

        Args:
            inputs: a number for each of its inputs; equal numbers stand for the same input.

        Raises:
            NoNumberError: see the module.
        """
        return self._results(closed, [self._number(("argument", each)) for each in inputs])

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _results(self, closed: core.ClosedJaxpr, inputs: Sequence[int]) -> tuple[int, ...]:
        jaxpr = closed.jaxpr
        known = {var: self._constant(const) for var, const in zip(jaxpr.constvars, closed.consts, strict=True)}
        known.update(zip(jaxpr.invars, inputs, strict=True))
        for equation in jaxpr.eqns:
            if not jit_adapter.has_no_side_effects(equation):
                raise NoNumberError(f"{equation.primitive.name} has side effects")
            values = [self._atom(atom, known) for atom in equation.invars]
            inlined = _called(equation)
            if inlined is not None:
                results = self._results(inlined, values)
            else:
                made = self._number((self._operation(equation), tuple(values)))
                results = tuple(self._number(("result", made, place)) for place in range(len(equation.outvars)))
            known.update(zip(equation.outvars, results, strict=True))
        return tuple(self._atom(atom, known) for atom in jaxpr.outvars)

    def _atom(self, atom: Any, known: dict[Any, int]) -> int:
        return self._constant(atom.val, atom.aval.dtype) if isinstance(atom, core.Literal) else known[atom]

    def _constant(self, value: Any, dtype: Any = None) -> int:
        return self._number(("constant", self._array(value, dtype)))

    def _operation(self, equation: Any) -> Hashable:
        """Return the operation of an equation, with its parameters and settings."""
        if equation.primitive.name in _IMPURE:
            raise NoNumberError(f"{equation.primitive.name} returns other numbers each time")
        params = {name: value for name, value in equation.params.items() if name not in _UNIMPORTANT}
        settings = self._once(equation.ctx, lambda: self._comparable(jit_adapter.settings_of(equation)))
        return equation.primitive, self._comparable(params), settings

    def _comparable(self, value: Any) -> Hashable:
        """Return a hashable value that is equal for equal parameters of equations."""
        match value:
            case core.ClosedJaxpr():
                return self._once(value, lambda: self._function(value))
            case core.Jaxpr():
                return self._once(value, lambda: self._function(core.ClosedJaxpr(value, ())))
            case float():  # -0.0 equals 0.0
                return float, struct.pack("d", value)
            case complex():
                return complex, struct.pack("dd", value.real, value.imag)
            case np.ndarray() | np.generic() | jax.Array():
                return self._array(value)
            case None | bool() | int() | str():
                return type(value), value
            case tuple() | list():
                return type(value), tuple(map(self._comparable, value))
            case dict():
                return dict, frozenset((self._comparable(key), self._comparable(each)) for key, each in value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value))
            return type(value), tuple((name, self._comparable(each)) for name, each in fields)
        try:
            hash(value)
        except TypeError as error:
            raise NoNumberError(f"{type(value).__name__} cannot be compared") from error
        return type(value), value  # functions are equal only to themselves

    def _function(self, closed: core.ClosedJaxpr) -> Hashable:
        """Return what a function in a parameter is equal to: its results, or all of its equations if it has effects."""
        avals = tuple(var.aval for var in closed.jaxpr.invars)
        if closed.jaxpr.constvars and not closed.consts:
            raise NoNumberError("a function reads values from outside")
        if all(map(jit_adapter.has_no_side_effects, jit_adapter.all_equations(closed.jaxpr))):
            inputs = [self._number(("input", place, aval)) for place, aval in enumerate(avals)]
            return "function", avals, self._results(closed, inputs)
        return "sequence", avals, self._sequence(closed)

    def _sequence(self, closed: core.ClosedJaxpr) -> Hashable:
        """Return the equations in their order, with numbers for variables. Writes to references are no values."""
        jaxpr = closed.jaxpr
        places: dict[Any, Hashable] = {var: place for place, var in enumerate(jaxpr.invars)}
        places.update(
            (var, ("constant", self._array(each))) for var, each in zip(jaxpr.constvars, closed.consts, strict=True)
        )

        def place(atom: Any) -> Hashable:
            return self._array(atom.val, atom.aval.dtype) if isinstance(atom, core.Literal) else places[atom]

        rows = []
        for equation in jaxpr.eqns:
            rows.append((self._operation(equation), tuple(map(place, equation.invars)), len(equation.outvars)))
            for var in equation.outvars:
                places[var] = len(places)
        return tuple(rows), tuple(map(place, jaxpr.outvars))

    def _array(self, value: Any, dtype: Any = None) -> Hashable:
        """Return what an array is equal to: its shape, dtype and bytes."""
        if isinstance(value, jax.Array):
            return self._once(value, lambda: _bytes_of(value, None))
        return _bytes_of(value, dtype)

    def _once(self, value: Any, make: Callable[[], Hashable]) -> Hashable:
        if id(value) not in self._known:
            self._known[id(value)] = value, make()
        return self._known[id(value)][1]


def _called(equation: Any) -> core.ClosedJaxpr | None:
    """Return the function of a call; None for other equations, and for a jit with shardings."""
    name = _CALLS.get(equation.primitive.name)
    if name is None or not jit_adapter.has_no_shardings(equation.params):
        return None
    inner = equation.params[name]
    return inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())


def _bytes_of(value: Any, dtype: Any) -> Hashable:
    kind = ""
    try:
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            kind, value = str(value.dtype), jax.random.key_data(value)
        array = np.asarray(value, dtype)
    except (RuntimeError, TypeError, ValueError) as error:  # a tracer; an array on devices of another process
        raise NoNumberError("a constant has no value") from error
    if array.dtype.hasobject:
        raise NoNumberError("a constant is no array of numbers")
    return kind, array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).digest()
