"""One pass through a traced step: what each value is made from, and how the arguments meet on the way.

JAX names every operation after the transformations around it: `jvp(` marks what is differentiated, `transpose(` what
differentiation derives, and neither mark the rest of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import jax
from jax.extend import core

from memprof.analysis.attribution.op_names import Named, named_phase
from memprof.capture.roles.axes import Axes, Numbers, free_axes


@dataclass(frozen=True, slots=True)
class Made:
    """What a value is made from. Sets of argument leaves are bits of an integer.

    Attributes:
        directly: leaves that reach it through operations outside of differentiation alone.
        forward: leaves that reach it without passing through the backward pass and in one shape all the way.
        sources: arrays that it depends on in any way; keys and scalars do not count.
        itself: the leaf that it is, unchanged.
        of_gradients: an operation of the backward pass lies upstream.
        axes: the numbers of its axes.
    """

    directly: int = 0
    forward: int = 0
    sources: int = 0
    itself: int = 0
    of_gradients: bool = False
    axes: Numbers = ()

    def __or__(self, other: Made) -> Made:
        return Made(
            self.directly | other.directly,
            self.forward | other.forward,
            self.sources | other.sources,
            self.itself if self.itself == other.itself else 0,
            self.of_gradients or other.of_gradients,
            self.axes,
        )


class Kind(Enum):
    """How two values meet."""

    PRODUCT = auto()  # a matrix product or a convolution
    LOOKUP = auto()  # the second one says which rows of the first one
    SCALED = auto()  # element by element, as a mask or a scale
    BESIDE = auto()  # element by element in another way
    STRETCHED = auto()  # a value is repeated along new axes


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two values in one operation that is not of the backward pass.

    Attributes:
        left, right: their sources.
        left_free, right_free: the axes of the result that each alone gives it.
        is_backward_made: one of them comes from the backward pass.
        is_along: a product that goes along an axis that both have, for each of its places apart.
    """

    kind: Kind
    left: int
    right: int
    left_free: Numbers = ()
    right_free: Numbers = ()
    is_backward_made: bool = False
    is_along: bool = False


@dataclass(slots=True)
class Walk:
    """What was seen on a pass through a jaxpr and all jaxprs inside it."""

    axes: Axes = field(default_factory=Axes)
    differentiated: int = 0
    meetings: set[Meeting] = field(default_factory=set)
    _phases: dict[str, Named] = field(default_factory=dict)

    def arguments(self, invars: Sequence[Any]) -> list[Made]:
        """The leaves of a step's arguments as values."""
        return [
            Made(bit, bit, bit if _is_array(invar.aval) else 0, bit, False, self.axes.new(invar.aval.shape))
            for bit, invar in ((1 << number, invar) for number, invar in enumerate(invars))
        ]

    def follow(self, jaxpr: Any, made: Sequence[Made], around: Named) -> list[Made]:
        """What the results of a jaxpr are made from.

        Args:
            made: what its inputs are made from.
            around: the phase of the operation that the jaxpr lies in.
        """
        known: dict[Any, Made] = dict(zip(jaxpr.invars, made, strict=True))

        def of(atom: Any) -> Made:
            if isinstance(atom, core.Literal):
                return Made(axes=self.axes.new(getattr(atom.aval, "shape", ())))
            if atom not in known:  # a constant that the function has closed over
                known[atom] = Made(axes=self.axes.new(getattr(atom.aval, "shape", ())))
            return known[atom]

        for equation in jaxpr.eqns:
            phase = self._phase(equation, around)
            results = self._results(equation, [*map(of, equation.invars)], phase)
            known.update(zip(equation.outvars, results, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _phase(self, equation: Any, around: Named) -> Named:
        name = str(equation.source_info.name_stack)
        if name not in self._phases:
            self._phases[name] = named_phase(name)
        own = self._phases[name]
        return around if own in (Named.NOTHING, Named.UNPHASED) else own

    def _results(self, equation: Any, made: list[Made], phase: Named) -> list[Made]:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            body = params["jaxpr"].jaxpr
            return self._loop(body, made, *_scan_layout(equation, body), phase)
        if name == "while":
            num_constants = params["cond_nconsts"]
            body = params["body_jaxpr"].jaxpr
            return self._loop(body, made[num_constants:], params["body_nconsts"], len(equation.outvars), phase)
        if name == "cond":
            return self._branches([branch.jaxpr for branch in params["branches"]], made[1:], phase)
        if name in _UNCHANGED:
            return made
        inner = _called(equation)
        if inner is not None:
            return self.follow(inner, made, phase)
        return self._operation(equation, made, phase)

    def _operation(self, equation: Any, made: list[Made], phase: Named) -> list[Made]:
        everything = _joined(made)
        if equation.primitive.name == "select_n":  # what decides between two values does not go into either
            chosen = _joined(made[1:])
            everything = replace(chosen, sources=everything.sources)
        if phase is not Named.UNPHASED:
            for each in made:
                # What has been updated already speaks of what it was updated with, too.
                self.differentiated |= 0 if each.of_gradients else each.directly
        is_backward = phase is Named.BACKWARD
        axes = self.axes.of_results(equation, [each.axes for each in made])
        if axes and not is_backward:  # what prints has no results
            self.meetings.update(_meetings(equation, made, axes[0]))
        return [
            Made(
                directly=everything.directly if phase is Named.UNPHASED else 0,
                forward=0 if is_backward else _elementwise(equation, made, outvar),
                sources=everything.sources,
                of_gradients=everything.of_gradients or is_backward,
                axes=numbers,
            )
            for outvar, numbers in zip(equation.outvars, axes, strict=True)
        ]

    def _branches(self, branches: Sequence[Any], made: Sequence[Made], phase: Named) -> list[Made]:
        all_results = [self.follow(branch, made, phase) for branch in branches]
        for results in all_results[1:]:
            for one, other in zip(all_results[0], results, strict=True):
                self.axes.join_all(one.axes, other.axes)
        return [_joined(results) for results in zip(*all_results, strict=True)]

    def _loop(self, body: Any, made: list[Made], num_constants: int, num_carried: int, phase: Named) -> list[Made]:
        constants, carried = made[:num_constants], made[num_constants : num_constants + num_carried]
        outside = made[num_constants + num_carried :]
        turns = next((each.axes[0] for each in outside if each.axes), 0)
        for each in outside:
            self.axes.join_all(each.axes[:1], (turns,))
        mapped = [replace(each, axes=each.axes[1:], itself=0) for each in outside]
        while True:
            results = self.follow(body, [*constants, *carried, *mapped], phase)
            for before, after in zip(carried, results[:num_carried], strict=True):
                self.axes.join_all(before.axes, after.axes)
            joined = [before | after for before, after in zip(carried, results[:num_carried], strict=True)]
            if joined == carried:
                stacked = [replace(each, axes=(turns, *each.axes), itself=0) for each in results[num_carried:]]
                return [*carried, *stacked]
            carried = joined


# Operations that only say where or when values are to be.
_UNCHANGED = frozenset({"optimization_barrier", "device_put", "sharding_constraint", "copy", "copy_p"})
# Operations each of whose results is made of many elements, even where the shapes happen to be equal.
_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})
_SCALINGS = frozenset({"mul", "div", "select_n", "and"})


def _meetings(equation: Any, made: Sequence[Made], axes: Numbers) -> list[Meeting]:
    name = equation.primitive.name
    if name in _CONTRACTIONS:
        left, right = free_axes(equation, [each.axes for each in made])
        return [
            Meeting(
                Kind.PRODUCT,
                made[0].sources,
                made[1].sources,
                left,
                right,
                made[0].of_gradients or made[1].of_gradients,
                name == "dot_general" and bool(equation.params["dimension_numbers"][1][0]),
            )
        ]
    if name == "gather":
        return [Meeting(Kind.LOOKUP, made[0].sources, made[1].sources, (), made[1].axes[:-1])]
    stretched = _stretched(equation, made, axes)
    arrays = [each for each in made if each.sources and each.axes]
    if len({each.sources for each in arrays}) < 2:
        return stretched
    kind = Kind.SCALED if name in _SCALINGS else Kind.BESIDE
    meetings = stretched
    for each in arrays:
        if each.sources.bit_count() == 1:
            others = _joined([other for other in arrays if other is not each])
            is_backward_made = each.of_gradients or others.of_gradients
            meetings.append(Meeting(kind, each.sources, others.sources, is_backward_made=is_backward_made))
    return meetings


def _stretched(equation: Any, made: Sequence[Made], axes: Numbers) -> list[Meeting]:
    """The operands that are repeated along axes of the result."""
    if equation.primitive.name == "broadcast_in_dim":
        kept = equation.params["broadcast_dimensions"]
        places = {axis: place for place, axis in enumerate(kept)}
        along = [
            tuple(number for axis, number in enumerate(axes) if axis not in places or not made[0].axes[places[axis]])
        ]
        operands = made[:1]
    else:
        operands = [each for each in made if len(each.axes) == len(axes)]
        along = [tuple(n for own, n in zip(each.axes, axes, strict=True) if not own) for each in operands]
    return [
        Meeting(Kind.STRETCHED, each.sources, 0, (), numbers)
        for each, numbers in zip(operands, along, strict=True)
        if each.sources and each.axes and any(numbers)
    ]


def _is_array(aval: Any) -> bool:
    return bool(aval.shape) and not is_key(aval)


def is_key(aval: Any) -> bool:
    """A random key, new style or, as the two words of the default generator, old style."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)) or (
        tuple(aval.shape) == (2,) and aval.dtype == jax.numpy.uint32
    )


def _scan_layout(equation: Any, body: Any) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried from turn to turn.

    Inferred from the shapes, since the names of the parameters that say it change between versions of JAX: what is
    mapped over has one axis more outside of the body than in it.
    """

    def num_alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(1 for atom, variable in pairs if atom.aval.shape == variable.aval.shape)

    num_carried = num_alike(equation.outvars, body.outvars)
    return num_alike(equation.invars, body.invars) - num_carried, num_carried


def _elementwise(equation: Any, made: Sequence[Made], outvar: Any) -> int:
    """The leaves that reach a result through operands of its own shape."""
    if equation.primitive.name in _CONTRACTIONS:
        return 0
    leaves = 0
    for invar, each in zip(equation.invars, made, strict=True):
        if each.forward and invar.aval.shape == outvar.aval.shape:
            leaves |= each.forward
    return leaves


def _joined(made: Sequence[Made]) -> Made:
    if not made:
        return Made()
    everything = made[0]
    for each in made[1:]:
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
