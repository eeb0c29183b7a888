"""What a traced step does with each leaf of its arguments.

JAX names every operation after the transformations around it: `jvp(` marks what is differentiated, `transpose(` what
differentiation derives, and neither mark the rest of the step. So the program itself tells the parameters:

- they are read by what is differentiated, and a result of their shape is made from them directly and from gradients;
- optimizer state is updated with gradients in the same way, but nothing that is differentiated reads it;
- what comes back in its own shape without gradients is state of another kind (batch statistics, counters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from memprof.analysis.op_names import Named, named_phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentUse:
    """What becomes of one argument leaf.

    Attributes:
        is_differentiated: what is differentiated reads it as it comes, or cast or reshaped.
        is_trained: a result of its shape and dtype is made from it and from gradients.
        is_carried: a result of its shape and dtype is made from it, element by element.
        is_differentiated_for: the step returns its gradient.
    """

    is_differentiated: bool
    is_trained: bool
    is_carried: bool
    is_differentiated_for: bool = False


@dataclass(frozen=True, slots=True)
class _Made:
    """What a value is made from. Sets of argument leaves are bits of an integer.

    Attributes:
        directly: leaves that reach it through operations outside of differentiation alone.
        forward: leaves that reach it without passing through the backward pass and in one shape all the way.
        of_gradients: an operation of the backward pass lies upstream.
    """

    directly: int = 0
    forward: int = 0
    of_gradients: bool = False

    def __or__(self, other: _Made) -> _Made:
        return _Made(
            self.directly | other.directly, self.forward | other.forward, self.of_gradients or other.of_gradients
        )


_NOTHING = _Made()
# Operations each of whose results is made of many elements, even where the shapes happen to be equal.
_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})


def argument_uses(jaxpr: Any, arguments: Sequence[tuple[int, int]]) -> list[ArgumentUse]:
    """Follow the arguments through a step.

    Args:
        jaxpr: the `ClosedJaxpr` of the step.
        arguments: first leaf and number of leaves of each argument of the step.

    Returns:
        One use for each argument leaf.
    """
    walk = _Walk()
    invars = jaxpr.jaxpr.invars
    results = walk.follow(jaxpr.jaxpr, [_Made(1 << n, 1 << n) for n in range(len(invars))], Named.UNPHASED)
    trained = carried = 0
    for outvar, made in zip(jaxpr.jaxpr.outvars, results, strict=True):
        same = sum(1 << n for n, invar in enumerate(invars) if _alike(invar, outvar))
        carried |= made.forward & same
        if made.of_gradients:
            trained |= made.directly & same
    gradients = [
        outvar
        for outvar, made in zip(jaxpr.jaxpr.outvars, results, strict=True)
        if made.of_gradients and not made.directly
    ]
    returned = _argument_like(gradients, invars, arguments)
    return [
        ArgumentUse(
            is_differentiated=bool(walk.differentiated >> n & 1),
            is_trained=bool(trained >> n & 1),
            is_carried=bool(carried >> n & 1),
            is_differentiated_for=n in returned,
        )
        for n in range(len(invars))
    ]


def _alike(left: Any, right: Any) -> bool:
    return bool(left.aval.shape == right.aval.shape and left.aval.dtype == right.aval.dtype)


def _argument_like(gradients: Sequence[Any], invars: Sequence[Any], arguments: Sequence[tuple[int, int]]) -> range:
    """The leaves of the first argument whose shapes are, one by one, those of the gradients that the step returns."""
    for first, count in arguments:
        leaves = invars[first : first + count]
        if count and count == len(gradients) and all(map(_alike, leaves, gradients)):
            return range(first, first + count)
    return range(0)


class _Walk:
    """One pass through a jaxpr and all jaxprs inside it."""

    def __init__(self) -> None:
        self.differentiated = 0
        self._phases: dict[str, Named] = {}

    def follow(self, jaxpr: Any, made: Sequence[_Made], around: Named) -> list[_Made]:
        """What the results of a jaxpr are made from.

        Args:
            made: what its inputs are made from.
            around: the phase of the operation that the jaxpr lies in.
        """
        known: dict[Any, _Made] = dict(zip(jaxpr.invars, made, strict=True))

        def of(atom: Any) -> _Made:
            return _NOTHING if isinstance(atom, core.Literal) else known.get(atom, _NOTHING)

        for equation in jaxpr.eqns:
            phase = self._phase(equation, around)
            known.update(
                zip(equation.outvars, self._results(equation, [*map(of, equation.invars)], phase), strict=True)
            )
        return [of(atom) for atom in jaxpr.outvars]

    def _phase(self, equation: Any, around: Named) -> Named:
        name = str(equation.source_info.name_stack)
        if name not in self._phases:
            self._phases[name] = named_phase(name)
        own = self._phases[name]
        return around if own in (Named.NOTHING, Named.UNPHASED) else own

    def _results(self, equation: Any, made: list[_Made], phase: Named) -> list[_Made]:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            body = params["jaxpr"].jaxpr
            return self._loop(body, made, *_scan_layout(equation, body), phase)
        if name == "while":
            constants = params["cond_nconsts"]
            body = params["body_jaxpr"].jaxpr
            return self._loop(body, made[constants:], params["body_nconsts"], len(equation.outvars), phase)
        if name == "cond":
            branches = [self.follow(branch.jaxpr, made[1:], phase) for branch in params["branches"]]
            return [_joined(results) for results in zip(*branches, strict=True)]
        inner = _called(equation)
        if inner is not None:
            return self.follow(inner, made, phase)
        everything = _joined(made)
        if phase is not Named.UNPHASED:
            self.differentiated |= everything.directly
        is_backward = phase is Named.BACKWARD
        return [
            _Made(
                directly=everything.directly if phase is Named.UNPHASED else 0,
                forward=0 if is_backward else _elementwise(equation, made, outvar),
                of_gradients=everything.of_gradients or is_backward,
            )
            for outvar in equation.outvars
        ]

    def _loop(self, body: Any, made: list[_Made], num_constants: int, num_carried: int, phase: Named) -> list[_Made]:
        constants, carried = made[:num_constants], made[num_constants : num_constants + num_carried]
        mapped = made[num_constants + num_carried :]
        while True:
            results = self.follow(body, [*constants, *carried, *mapped], phase)
            joined = [before | after for before, after in zip(carried, results[:num_carried], strict=True)]
            if joined == carried:
                return [*carried, *results[num_carried:]]
            carried = joined


def _scan_layout(equation: Any, body: Any) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried from turn to turn.

    Told by the shapes, since the names of the parameters that say it change between versions of JAX: what is mapped
    over has one axis more outside of the body than in it.
    """

    def num_alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(1 for atom, variable in pairs if atom.aval.shape == variable.aval.shape)

    num_carried = num_alike(equation.outvars, body.outvars)
    return num_alike(equation.invars, body.invars) - num_carried, num_carried


def _elementwise(equation: Any, made: Sequence[_Made], outvar: Any) -> int:
    """The leaves that reach a result through operands of its own shape."""
    if equation.primitive.name in _CONTRACTIONS:
        return 0
    leaves = 0
    for invar, each in zip(equation.invars, made, strict=True):
        if each.forward and invar.aval.shape == outvar.aval.shape:
            leaves |= each.forward
    return leaves


def _joined(made: Sequence[_Made]) -> _Made:
    everything = _NOTHING
    for each in made:
        everything |= each
    return everything


def _called(equation: Any) -> Any:
    """The jaxpr that an operation only calls (`jit`, `checkpoint`, `custom_vjp_call`, ...); None for any other."""
    for value in equation.params.values():
        inner = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
        if (
            isinstance(inner, core.Jaxpr)
            and len(inner.invars) == len(equation.invars)
            and len(inner.outvars) == len(equation.outvars)
        ):
            return inner
    return None
