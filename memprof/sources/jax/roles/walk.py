"""One pass through a traced step: the origins of each value, and the operations in which arguments meet.

JAX names each operation after the transformations around it: `jvp(` marks differentiated operations, `transpose(` marks
the operations derived by differentiation, and the rest of the step has neither mark.

A second pass can receive the results that are new parameters (`Walk.updated`). Everything downstream of such a result
then counts as made from the parameter, and no longer from the gradient that updated it. A target network mixed with new
parameters, or an environment in which a new policy acts, is not itself updated by a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

import jax
from jax.extend import core

from memprof.analysis.attribution.op_names import Named, named_phase
from memprof.sources.jax.roles.axes import Axes, Numbers, free_axes
from memprof.sources.jax.roles.caches import NOTHING_HELD, Caches, Held
from memprof.sources.jax.tracing.jit_adapter import scan_layout


@dataclass(frozen=True, slots=True)
class Made:
    """The origins of a value. Sets of argument leaves are bits of an integer.

    Attributes:
        directly: leaves that reach it only through operations outside differentiation.
        forward: leaves that reach it without the backward pass and without a change of shape.
        lineage: leaves whose elements flow into its own, without the backward pass, a product or a sum.
        added: leaves that flow into it in its own shape, moved or added to, but not changed otherwise.
        sources: arrays that it depends on in any way; keys and scalars do not count.
        itself: the leaf that it equals, unchanged.
        accepted: leaves that a random draw keeps or replaces by a proposal, as in a Metropolis test.
        of_gradients: an operation of the backward pass lies upstream, without a boolean in between.
        is_random: random bits lie upstream.
        is_draw: it compares random bits with a value made from arrays.
        held: its content, as far as attention could read it (see `caches.py`).
        axes: the numbers of its axes.
    """

    directly: int = 0
    forward: int = 0
    lineage: int = 0
    added: int = 0
    sources: int = 0
    itself: int = 0
    accepted: int = 0
    of_gradients: bool = False
    is_random: bool = False
    is_draw: bool = False
    held: Held = NOTHING_HELD
    axes: Numbers = ()

    def __or__(self, other: Made) -> Made:
        return Made(
            self.directly | other.directly,
            self.forward | other.forward,
            self.lineage | other.lineage,
            self.added | other.added,
            self.sources | other.sources,
            self.itself if self.itself == other.itself else 0,
            self.accepted | other.accepted,
            self.of_gradients or other.of_gradients,
            self.is_random or other.is_random,
            self.is_draw or other.is_draw,
            self.held | other.held,
            self.axes,
        )


_NONE: Mapping[int, int] = MappingProxyType({})


class Kind(Enum):
    """How two values meet."""

    PRODUCT = auto()  # a matrix product or a convolution
    LOOKUP = auto()  # the second value selects rows of the first one
    SCALED = auto()  # element by element, as a mask or a scale
    BESIDE = auto()  # element by element in another way
    STRETCHED = auto()  # a value is repeated along new axes
    NUMBERS = auto()  # integers become floats, so they are no indices


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two values in one operation outside the backward pass.

    Attributes:
        left, right: their sources.
        left_free, right_free: the axes of the result that come from one of them only.
        is_backward_made: one of them comes from the backward pass.
        is_along: the operation is a product with a batch axis.
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
    """The observations of a pass through a jaxpr and all jaxprs inside it.

    Attributes:
        differentiated: leaves that differentiated operations read.
        differentiated_alone: leaves that they read before these are combined with other leaves.
        keys: leaves that random keys are made from.
        caches: the values that attention reads, and the values written at an index.
        updated: the origins of new parameters, by the number of the parameter, if `follow` receives new parameters.
    """

    axes: Axes = field(default_factory=Axes)
    differentiated: int = 0
    differentiated_alone: int = 0
    keys: int = 0
    meetings: set[Meeting] = field(default_factory=set)
    caches: Caches = field(default_factory=Caches)
    updated: dict[int, Made] = field(default_factory=dict)
    _phases: dict[str, Named] = field(default_factory=dict)

    def arguments(self, invars: Sequence[Any]) -> list[Made]:
        """Return the leaves of a step's arguments as values."""
        self.caches.start(len(invars))
        return [self._leaf(number, invar.aval) for number, invar in enumerate(invars)]

    def _leaf(self, number: int, aval: Any, axes: Numbers | None = None) -> Made:
        bit = 1 << number
        return Made(
            directly=bit,
            forward=bit,
            lineage=bit,
            added=bit,
            sources=bit if _is_array(aval) else 0,
            held=Held(holds=bit, made_of=bit) if _is_array(aval) else NOTHING_HELD,
            itself=bit if axes is None else 0,
            axes=self.axes.new(aval.shape) if axes is None else axes,
        )

    def follow(self, jaxpr: Any, made: Sequence[Made], around: Named, new: Mapping[int, int] = _NONE) -> list[Made]:
        """Return the origins of a jaxpr's results.

        Args:
            made: the origins of its inputs.
            around: the phase of the operation that contains the jaxpr.
            new: results that are new parameters, with the numbers of these parameters.
        """
        known: dict[Any, Made] = dict(zip(jaxpr.invars, made, strict=True))
        parameters = _new_variables(jaxpr, new) if new else {}

        def of(atom: Any) -> Made:
            if isinstance(atom, core.Literal):
                return Made(axes=self.axes.new(getattr(atom.aval, "shape", ())))
            if atom not in known:  # a constant in the function's closure
                known[atom] = Made(axes=self.axes.new(getattr(atom.aval, "shape", ())))
            return known[atom]

        for equation in jaxpr.eqns:
            phase = self._phase(equation, around)
            inside = {n: parameters[var] for n, var in enumerate(equation.outvars) if var in parameters}
            results = self._results(equation, [*map(of, equation.invars)], phase, inside)
            known.update(zip(equation.outvars, results, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _phase(self, equation: Any, around: Named) -> Named:
        name = str(equation.source_info.name_stack)
        if name not in self._phases:
            self._phases[name] = named_phase(name)
        own = self._phases[name]
        return around if own in (Named.NOTHING, Named.UNPHASED) else own

    def _results(self, equation: Any, made: list[Made], phase: Named, new: Mapping[int, int]) -> list[Made]:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return self._loop(params["jaxpr"].jaxpr, made, *scan_layout(equation), phase, new)
        if name == "while":
            num_constants = params["cond_nconsts"]
            body = params["body_jaxpr"].jaxpr
            return self._loop(body, made[num_constants:], params["body_nconsts"], len(equation.outvars), phase, new)
        if name == "cond":
            return self._branches([branch.jaxpr for branch in params["branches"]], made[0], made[1:], phase, new)
        if name in _UNCHANGED:
            return made
        inner = called_jaxpr(equation)
        if inner is not None:
            return self.follow(inner, made, phase, new)
        results = self._operation(equation, made, phase)
        for place, number in new.items():
            self.updated[number] = self.updated[number] | results[place] if number in self.updated else results[place]
            results[place] = self._leaf(number, equation.outvars[place].aval, results[place].axes)
        return results

    def _operation(self, equation: Any, made: list[Made], phase: Named) -> list[Made]:
        name = equation.primitive.name
        everything = _joined(made)
        if name == "select_n":  # the predicate of a select enters neither value
            everything = replace(_decided(made[0], made[1:]), sources=everything.sources)
        if name == "random_wrap":
            self.keys |= made[0].lineage
        if phase is not Named.UNPHASED:
            for each in made:
                # An updated value also carries the leaves that updated it, which do not count here.
                self.differentiated |= 0 if each.of_gradients else each.directly
                is_alone = not each.of_gradients and each.directly.bit_count() == 1
                self.differentiated_alone |= each.directly if is_alone else 0
        is_backward = phase is Named.BACKWARD
        axes = self.axes.of_results(equation, [each.axes for each in made])
        if axes and not is_backward:  # a print has no results
            self.meetings.update(_meetings(equation, made, axes[0]))
        held = self.caches.of_result(equation, [each.held for each in made])
        is_draw = everything.is_draw or (name in _COMPARISONS and _is_drawn(made))
        keeps_elements = not is_backward and name not in _CONTRACTIONS and not name.startswith(("reduce_", "arg"))
        return [
            Made(
                directly=everything.directly if phase is Named.UNPHASED else 0,
                forward=0 if is_backward else _elementwise(equation, made, outvar),
                lineage=everything.lineage if keeps_elements else 0,
                added=everything.added if name in _ADDITIONS and not is_backward else 0,
                sources=everything.sources,
                accepted=everything.accepted,
                of_gradients=(everything.of_gradients or is_backward) and not _is_boolean(outvar.aval),
                is_random=everything.is_random or name in _RANDOM,
                is_draw=is_draw and _is_decision(outvar.aval),
                held=held,
                axes=numbers,
            )
            for outvar, numbers in zip(equation.outvars, axes, strict=True)
        ]

    def _branches(
        self, branches: Sequence[Any], chosen_by: Made, made: Sequence[Made], phase: Named, new: Mapping[int, int]
    ) -> list[Made]:
        all_results = [self.follow(branch, made, phase, new) for branch in branches]
        for results in all_results[1:]:
            for one, other in zip(all_results[0], results, strict=True):
                self.axes.join_all(one.axes, other.axes)
        return [_decided(chosen_by, results) for results in zip(*all_results, strict=True)]

    def _loop(
        self, body: Any, made: list[Made], num_constants: int, num_carried: int, phase: Named, new: Mapping[int, int]
    ) -> list[Made]:
        constants, carried = made[:num_constants], made[num_constants : num_constants + num_carried]
        outside = made[num_constants + num_carried :]
        turns = next((each.axes[0] for each in outside if each.axes), 0)
        for each in outside:
            self.axes.join_all(each.axes[:1], (turns,))
        mapped = [replace(each, axes=each.axes[1:], itself=0) for each in outside]
        new_carried = {place: number for place, number in new.items() if place < num_carried}
        while True:
            results = self.follow(body, [*constants, *carried, *mapped], phase, new_carried)
            for before, after in zip(carried, results[:num_carried], strict=True):
                self.axes.join_all(before.axes, after.axes)
            joined = [before | after for before, after in zip(carried, results[:num_carried], strict=True)]
            if joined == carried:
                stacked = [replace(each, axes=(turns, *each.axes), itself=0) for each in results[num_carried:]]
                # A leaf counts as added to only if each iteration adds to it, not just the first.
                return [*map(_accumulated_in_loop, carried, results), *stacked]
            carried = joined


def _accumulated_in_loop(carried: Made, after: Made) -> Made:
    return replace(carried, added=carried.added & after.added)


def _decided(by: Made, cases: Sequence[Made]) -> Made:
    """Return one of several values. If a random draw chooses it, the leaves in its lineage are accepted."""
    chosen = _joined(cases)
    return replace(chosen, accepted=chosen.accepted | chosen.lineage) if by.is_draw else chosen


def _is_drawn(made: Sequence[Made]) -> bool:
    """Whether a comparison compares purely random bits with a value made from arrays."""
    return any(each.is_random and not each.sources for each in made) and any(each.sources for each in made)


def _new_variables(jaxpr: Any, new: Mapping[int, int]) -> dict[Any, int]:
    """Return the variables that hold new parameters: results of the jaxpr, and the values that they are chosen from."""
    inputs = set(jaxpr.invars)
    found = {
        jaxpr.outvars[place]: number for place, number in new.items() if isinstance(jaxpr.outvars[place], core.Var)
    }
    for equation in reversed(jaxpr.eqns):
        for place, var in enumerate(equation.outvars):
            if var in found:
                chosen = (atom for atom in _chosen_from(equation, place) if isinstance(atom, core.Var))
                found |= {atom: found[var] for atom in chosen if atom.aval.shape == var.aval.shape}
    return {var: number for var, number in found.items() if var not in inputs}


def _chosen_from(equation: Any, place: int) -> Sequence[Any]:
    """Return the operands that a result of an equation is chosen from, unchanged."""
    name = equation.primitive.name
    if name == "select_n":
        return list(equation.invars[1:])
    if name in _UNCHANGED:
        return [equation.invars[place]]
    inner = called_jaxpr(equation)
    if inner is None:
        return []
    outer = dict(zip(inner.invars, equation.invars, strict=True))
    makers = {var: (each, number) for each in inner.eqns for number, var in enumerate(each.outvars)}
    pending, found = [inner.outvars[place]], []
    while pending:
        atom = pending.pop()
        if not isinstance(atom, core.Var):
            continue
        if atom in outer:
            found.append(outer[atom])
        elif atom in makers:
            pending.extend(_chosen_from(*makers[atom]))
    return found


# Operations that only decide where or when a value exists.
_UNCHANGED = frozenset({"optimization_barrier", "device_put", "sharding_constraint", "copy", "copy_p"})
# Operations whose result elements are made from many elements, even if the shapes happen to be equal.
_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})
# Operations that add to elements, choose between them or move them.
_ADDITIONS = frozenset(
    "add add_any select_n max min broadcast_in_dim reshape squeeze expand_dims transpose convert_element_type gather"
    " dynamic_slice slice concatenate".split()
)
_SCALINGS = frozenset({"mul", "div", "select_n", "and"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge"})
_RANDOM = frozenset({"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform"})


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
    if name == "convert_element_type" and made[0].sources and _is_conversion_to_float(equation):
        return [Meeting(Kind.NUMBERS, made[0].sources, 0)]
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
    """Return the operands that are broadcast along axes of the result."""
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


def _is_conversion_to_float(equation: Any) -> bool:
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return bool(jax.numpy.issubdtype(before, jax.numpy.integer) and jax.numpy.issubdtype(after, jax.numpy.inexact))


def _is_boolean(aval: Any) -> bool:
    return bool(jax.numpy.issubdtype(getattr(aval, "dtype", float), jax.numpy.bool_))


def _is_decision(aval: Any) -> bool:
    """Whether a value is a boolean or an integer, such as a branch index."""
    return _is_boolean(aval) or bool(jax.numpy.issubdtype(getattr(aval, "dtype", float), jax.numpy.integer))


def _is_array(aval: Any) -> bool:
    return bool(aval.shape) and not is_key(aval)


def is_key(aval: Any) -> bool:
    """Whether a value is a random key: a new-style key, or the two words of an old-style key."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)) or (
        tuple(aval.shape) == (2,) and aval.dtype == jax.numpy.uint32
    )


def _elementwise(equation: Any, made: Sequence[Made], outvar: Any) -> int:
    """Return the leaves that reach a result through operands of its own shape."""
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


def called_jaxpr(equation: Any) -> Any:
    """Return the jaxpr that an operation only calls (`jit`, `checkpoint`, `custom_vjp_call`, ...), or None."""
    for value in equation.params.values():
        inner = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
        if (
            isinstance(inner, core.Jaxpr)
            and len(inner.invars) == len(equation.invars)
            and len(inner.outvars) == len(equation.outvars)
        ):
            return inner
    return None
