"""Divide a function into equal parts of its rows, and compute one part.

Each value of the function is one of these:

- whole: it depends on no row, so that every part may compute or read it;
- an array with the rows along an axis: a part computes its rows alone;
- a sum over all rows (`Total.SUM`): the sums of all parts add up to it;
- a result of an operation that mixes rows, or is not linear in their sums (`Total.LATER`): it is computed once, at the
  end.

If a loss is such a sum, its gradients are sums, too. For example, a mean over examples is a sum divided by a constant.
Batch statistics are sums that the forward pass needs for each row, so a function with them cannot be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.evaluation import bind, value_of, without_jits, without_rules
from memprof.sources.jax.checkpointing.pieces import Piece, State, Total
from memprof.sources.jax.checkpointing.rows import Axis, is_known, rows_of
from memprof.sources.jax.tracing import jit_adapter

_OURS = Path(__file__).parents[3]

# Operations that are linear in an input: the result of a sum is the sum of the results.
_LINEAR = frozenset(
    "broadcast_in_dim copy copy_p cumsum imag name neg real reduce_sum reshape rev sharding_constraint"
    " slice squeeze stop_gradient tile transpose".split()
)
_PRODUCTS = frozenset({"dot_general", "mul"})
_ADDITIONS = frozenset({"add", "add_any", "concatenate", "pad", "stack", "sub"})


class UndividedError(Exception):
    """A function cannot be divided. The message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Action:
    """How a part computes an equation: the states of its inputs and results, and a function from one to the other."""

    inputs: tuple[State, ...]
    results: tuple[State, ...]
    run: Callable[[Sequence[Any], Piece], list[Any]]


class Division:
    """A function whose rows can be computed in parts.

    Args:
        states: the states of its constants, then of its inputs: whole, or with a row axis.
        num_rows: the number of rows.
        fixed: the constants and inputs that are not differentiated; None for a function within another one. Values
            that depend on them alone may be computed outside of the parts.
        constants: identifies constant values, such as the numbers of the rows.

    Attributes:
        results: the states of its results.
        outside: the values that are computed whole before the parts, which read them.
        reasons: the reasons why values are computed later.
        divided_bytes, whole_bytes: sizes of the differentiated values that are made in parts, and of those that each
            part makes whole although they depend on a constant array.

    Raises:
        UndividedError: an operation of a function within another one cannot be divided.
    """

    def __init__(
        self,
        jaxpr: core.Jaxpr,
        states: Sequence[State],
        num_rows: int,
        *,
        fixed: Collection[Any] | None = None,
        constants: Constants | None = None,
    ) -> None:
        self._jaxpr, self._num_rows, self._constants = jaxpr, num_rows, constants
        self._states: dict[Any, State] = dict(zip([*jaxpr.constvars, *jaxpr.invars], states, strict=True))
        self._fixed = None if fixed is None else {*fixed}
        self._actions: dict[int, _Action] = {}
        self.outside: dict[Any, None] = {}
        self.reasons: dict[Any, str] = {}
        self.divided_bytes = self.whole_bytes = 0
        self._of_data = {var for var in jaxpr.constvars if var.aval.ndim}
        for number, equation in enumerate(jaxpr.eqns):
            self._add(number, equation)
        self.results = [self.state(atom) for atom in jaxpr.outvars]

    def state(self, atom: Any) -> State:
        """Return the state of an input or result of an equation."""
        return self._states[atom] if isinstance(atom, core.Var) else None

    def part(self, inputs: Sequence[Any], piece: Piece, wanted: Sequence[Any], outside: dict[Any, Any]) -> list[Any]:
        """Compute a part of the rows.

        Args:
            inputs: the part's constants and inputs, in their states.
            wanted: the variables to return. The sums are the part's own.
            outside: the values that are computed before the parts.
        """
        jaxpr = self._jaxpr
        known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))

        def taken(atom: Any, wanted: State) -> Any:
            if not isinstance(atom, core.Var):
                return piece.taken(atom.val, None, wanted)
            has = self._states[atom]
            if atom in outside and (atom not in known or has != wanted):
                return piece.taken(outside[atom], None, wanted)
            return piece.taken(known[atom], has, wanted)

        for number in needed(jaxpr, wanted, {*known, *outside}, among=self._actions):
            equation, action = jaxpr.eqns[number], self._actions[number]
            with jit_adapter.name_of(equation):
                values = [taken(*each) for each in zip(equation.invars, action.inputs, strict=True)]
                known.update(zip(equation.outvars, action.run(values, piece), strict=True))
        return [taken(atom, self.state(atom)) for atom in wanted]

    def _add(self, number: int, equation: Any) -> None:
        is_fixed = all(map(self._is_fixed, equation.invars))
        if self._fixed is not None and is_fixed:
            self._fixed.update(equation.outvars)
        if any(isinstance(atom, core.Var) and atom in self._of_data for atom in equation.invars):
            self._of_data.update(equation.outvars)
        action: _Action | None
        try:
            action = self._checked(equation)
        except UndividedError as error:
            if self._fixed is None:
                raise
            action = None if is_fixed else self._later(equation, str(error))
        if action is None or (is_fixed and any(isinstance(each, Total) for each in action.results)):
            self._states.update(dict.fromkeys(equation.outvars))
            self.outside.update(dict.fromkeys(equation.outvars))
            return
        for atom, wanted in zip(equation.invars, action.inputs, strict=True):
            if self.state(atom) != wanted and isinstance(atom, core.Var) and self._is_fixed(atom):
                self.outside[atom] = None
        self._states.update(zip(equation.outvars, action.results, strict=True))
        self._actions[number] = action
        if self._fixed is not None and not is_fixed:
            self._count(equation, action)

    def _count(self, equation: Any, action: _Action) -> None:
        if any(isinstance(each, int) or each is Total.SUM for each in action.results):
            self.divided_bytes += _made_bytes(equation)
        elif Total.LATER not in action.results and self._of_data.issuperset(equation.outvars):
            self.whole_bytes += _made_bytes(equation)

    def _checked(self, equation: Any) -> _Action:
        """Return the action of an equation whose inputs exist in the states that it needs."""
        action = self._action(equation)
        for atom, wanted in zip(equation.invars, action.inputs, strict=True):
            if self.state(atom) not in (wanted, None) and not self._is_fixed(atom):
                raise UndividedError(f"{named(equation)} mixes the rows")
        return action

    def _later(self, equation: Any, reason: str) -> _Action:
        """Return the action of an equation that no part computes."""
        before = next((self.reasons[atom] for atom in equation.invars if self.state(atom) is Total.LATER), reason)
        self.reasons.update(dict.fromkeys(equation.outvars, before))

        def run(values: Sequence[Any], piece: Piece) -> list[Any]:
            raise AssertionError("no part computes this")

        states = tuple(self.state(atom) for atom in equation.invars)
        return _Action(inputs=states, results=(Total.LATER,) * len(equation.outvars), run=run)

    def _is_fixed(self, atom: Any) -> bool:
        return self._fixed is not None and (not isinstance(atom, core.Var) or atom in self._fixed)

    def _action(self, equation: Any) -> _Action:
        name, states = equation.primitive.name, [self.state(atom) for atom in equation.invars]
        if all(each is None for each in states):
            return _Action(
                inputs=tuple(states),
                results=(None,) * len(equation.outvars),
                run=lambda values, piece: jit_adapter.bound(equation, [*values], equation.params),
            )
        if Total.LATER in states:
            raise UndividedError(f"{named(equation)} reads a result of all rows")
        if name in _CALLS:
            return _CALLS[name](equation, states, self._num_rows)
        if any(isinstance(each, Total) for each in states):
            return _of_sums(equation, states)
        if name == "gather" and (own := self._own_rows(equation, states)) is not None:
            return _of_own_rows(equation, states[0], own)
        return _of_rows(equation, states, self._num_rows)

    def _own_rows(self, equation: Any, states: Sequence[State]) -> Axis:
        """Return the row axis of indices by which each row looks up its own row of an array; None for other indices.

        An example is `logits[jnp.arange(n), labels]`.
        """
        (axis, of_indices), (array, indices) = states, equation.invars
        place, sizes = equation.params["dimension_numbers"].start_index_map, equation.params["slice_sizes"]
        joined = next((each for each in self._jaxpr.eqns if indices in each.outvars), None)
        if self._constants is None or joined is None or isinstance(of_indices, Total):
            return None
        if not isinstance(axis, int) or axis not in place or sizes[axis] != 1:
            return None
        columns = joined.invars
        if joined.primitive.name != "concatenate" or len(columns) != indices.aval.shape[-1]:
            return None
        for along in range(indices.aval.ndim - 1) if of_indices is None else [of_indices]:

            def are_own(numbers: Any, along: Any = along) -> Any:
                return (numbers == jax.lax.broadcasted_iota(numbers.dtype, numbers.shape, along)).all()

            is_as_long = indices.aval.shape[along] == array.aval.shape[axis]
            if is_as_long and self._constants.holds(are_own, columns[list(place).index(axis)]):
                return along
        return None


def needed(jaxpr: core.Jaxpr, wanted: Collection[Any], given: Collection[Any], among: Collection[int]) -> list[int]:
    """Return the numbers of the equations that make wanted variables from given ones, in order."""
    pending = {atom for atom in wanted if isinstance(atom, core.Var) and atom not in given}
    found: list[int] = []
    for number in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[number]
        if number in among and not pending.isdisjoint(equation.outvars):
            found.append(number)
            pending.update(atom for atom in equation.invars if isinstance(atom, core.Var) and atom not in given)
    return found[::-1]


def evaluated_whole(jaxpr: core.Jaxpr, wanted: Collection[Any], known: dict[Any, Any]) -> list[Any]:
    """Compute wanted values whole from known ones. Every computed value is added to `known`."""
    for number in needed(jaxpr, wanted, {*known}, among=range(len(jaxpr.eqns))):
        bind(jaxpr.eqns[number], known, jaxpr.eqns[number].params)
    return [value_of(atom, known) for atom in wanted]


def _of_rows(equation: Any, states: Sequence[State], num_rows: int) -> _Action:
    axes: list[Axis] = [each for each in states if not isinstance(each, Total)]
    rows = rows_of(equation, axes, num_rows)
    if rows is None:
        mixes = "mixes the rows" if is_known(equation.primitive.name) else "is an operation that memprof cannot divide"
        raise UndividedError(f"{named(equation)} {mixes}")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        return jit_adapter.bound(equation, [*values], rows.params(equation, piece.part_rows, piece.num_rows))

    result = Total.SUM if rows.result is None else rows.result
    return _Action(inputs=rows.inputs, results=(result,) * len(equation.outvars), run=run)


def _of_own_rows(equation: Any, axis: State, of_indices: int) -> _Action:
    """Return the action of a gather in which each row of indices looks up its own row: that of the part."""
    numbers = equation.params["dimension_numbers"]
    in_batch = [each for each in range(equation.outvars[0].aval.ndim) if each not in numbers.offset_dims]

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        array, indices = values
        own = jax.lax.broadcasted_iota(indices.dtype, indices.shape, of_indices)
        columns = jax.lax.broadcasted_iota(indices.dtype, indices.shape, indices.ndim - 1)
        of_part = jnp.where(columns == list(numbers.start_index_map).index(axis), own, indices)
        return jit_adapter.bound(equation, [array, of_part], equation.params)

    return _Action(inputs=(axis, of_indices), results=(in_batch[of_indices],), run=run)


def _of_sums(equation: Any, states: Sequence[State]) -> _Action:
    """Return the action of an equation that reads sums: if it is linear in them, a part computes its share."""
    name, is_sum = equation.primitive.name, [each is Total.SUM for each in states]
    inputs = tuple(states)
    if any(isinstance(each, int) for each in states):
        raise UndividedError(f"{named(equation)} combines a sum over all rows with each row")
    if name in _ADDITIONS:
        inputs = (Total.SUM,) * len(states)
    elif name == "select_n" and not is_sum[0]:
        inputs = (None, *(Total.SUM,) * (len(states) - 1))
    elif not (
        (name in _LINEAR and is_sum[0] and sum(is_sum) == 1)
        or (name in _PRODUCTS and sum(is_sum) == 1)
        or (name == "div" and is_sum == [True, False] and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.inexact))
        or (name == "convert_element_type" and jnp.issubdtype(equation.params["new_dtype"], jnp.inexact))
    ):
        raise UndividedError(f"{named(equation)} is not linear in a sum over the rows")
    return _Action(
        inputs=inputs,
        results=(Total.SUM,) * len(equation.outvars),
        run=lambda values, piece: jit_adapter.bound(equation, [*values], equation.params),
    )


def _made_bytes(equation: Any) -> int:
    """Return the bytes of all values that an equation makes, also inside it."""
    size = sum(prod(var.aval.shape) * var.aval.dtype.itemsize for var in equation.outvars)
    inside = (each for jaxpr in core.jaxprs_in_params(equation.params) for each in jaxpr.eqns)
    return int(size + equation.params.get("length", 1) * sum(map(_made_bytes, inside)))


def named(equation: Any) -> str:
    """Return the name of an operation, with its line in the user's code."""
    lines = [(Path(file), line) for _, file, line in jit_adapter.calls_to(equation)]
    places = [f" ({file.name}:{line})" for file, line in lines if _OURS not in file.parents]
    return f"{equation.primitive.name}{places[-1] if places else ''}"


def _scan(equation: Any, states: Sequence[State], num_rows: int) -> _Action:
    params = equation.params
    body = without_jits(params["jaxpr"])
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    consts, carry = [*states[:num_consts]], [*states[num_consts : num_consts + num_carried]]
    stacked = states[num_consts + num_carried :]
    if 0 in [each for each in stacked if each is not None]:
        return _map(equation, [*consts, *carry], num_rows)
    inner = [each - 1 if isinstance(each, int) else each for each in stacked]
    of_body = [None] * len(body.consts)
    while True:
        division = Division(body.jaxpr, [*of_body, *consts, *carry, *inner], num_rows)
        merged = [_merged(*each) for each in zip(carry, division.results[:num_carried], strict=True)]
        if merged == carry:
            break
        carry = merged

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        given = [*body.consts, *values[:num_consts]]

        def iteration(carried: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
            results = division.part([*given, *carried, *rows], piece, body.jaxpr.outvars, {})
            after = zip(results[:num_carried], division.results[:num_carried], carry, strict=True)
            return [piece.taken(*each) for each in after], results[num_carried:]

        start, rows = [*values[num_consts : num_consts + num_carried]], [*values[num_consts + num_carried :]]
        carried, made = jax.lax.scan(
            iteration, start, rows, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
        )
        return [*carried, *made]

    made = [each + 1 if isinstance(each, int) else each for each in division.results[num_carried:]]
    return _Action(inputs=(*consts, *carry, *stacked), results=(*carry, *made), run=run)


def _map(equation: Any, others: Sequence[State], num_rows: int) -> _Action:
    """Return the action of a scan over the rows that carries nothing, as `jax.lax.map` makes it."""
    params, (num_consts, num_carried) = equation.params, jit_adapter.scan_layout(equation)
    if num_carried or any(each is not None for each in others):
        raise UndividedError(f"{named(equation)} runs over the rows, and carries values from one to the next")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        length = params["length"] // num_rows * piece.part_rows
        return jit_adapter.bound(equation, [*values], {**params, "length": length})

    inputs = (*others, *(0,) * (len(equation.invars) - num_consts))
    return _Action(inputs=inputs, results=(0,) * len(equation.outvars), run=run)


def _merged(before: State, after: State) -> State:
    """Return the state of a carried value from its states before and after an iteration."""
    if before is not None and after is not None and before != after:
        raise UndividedError("a scan carries rows along two axes, or both rows and their sums")
    return after if before is None else before


def _checkpoint(equation: Any, states: Sequence[State], num_rows: int) -> _Action:
    params = equation.params
    inner = without_jits(core.ClosedJaxpr(params["jaxpr"], ()))
    division = Division(inner.jaxpr, [*[None] * len(inner.consts), *states], num_rows)

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        def part(*values: Any) -> list[Any]:
            return division.part([*inner.consts, *values], piece, inner.jaxpr.outvars, {})

        again = jax.checkpoint(part, policy=params["policy"], prevent_cse=params["prevent_cse"])
        return [*again(*values)]

    return _Action(inputs=tuple(states), results=tuple(division.results), run=run)


def _custom_jvp(equation: Any, states: Sequence[State], num_rows: int) -> _Action:
    """Return the action of a function with a custom JVP: both are divided."""
    floats = [number for number, atom in enumerate(equation.invars) if is_float(atom)]
    if not all(map(is_float, equation.outvars)):
        raise UndividedError(f"{named(equation)} returns integers")

    def whole(*values: Any) -> list[Any]:
        return jit_adapter.bound(equation, [*values], equation.params)

    def derivative(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        def of_floats(*given: Any) -> list[Any]:
            return whole(*_replaced(values, floats, given))

        results, of_tangents = jax.jvp(of_floats, [values[number] for number in floats], [*tangents])
        return results, of_tangents

    shapes = [*map(_shape, equation.invars)]
    function = without_rules(equation.params["call_jaxpr"])
    both = without_rules(jax.make_jaxpr(derivative)(shapes, [shapes[number] for number in floats]))
    tangents = [states[number] for number in floats]
    division = Division(function.jaxpr, [*[None] * len(function.consts), *states], num_rows)
    of_both = Division(both.jaxpr, [*[None] * len(both.consts), *states, *tangents], num_rows)
    if of_both.results != [*division.results, *division.results]:
        raise UndividedError(f"the derivative of {named(equation)} mixes the rows")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        def part(*values: Any) -> list[Any]:
            return division.part([*function.consts, *values], piece, function.jaxpr.outvars, {})

        def of_part(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            given = [*both.consts, *values, *[tangents[number] for number in floats]]
            results = of_both.part(given, piece, both.jaxpr.outvars, {})
            return results[: len(results) // 2], results[len(results) // 2 :]

        with_rule = jax.custom_jvp(part)
        with_rule.defjvp(of_part)
        return [*with_rule(*values)]

    return _Action(inputs=tuple(states), results=tuple(division.results), run=run)


def _custom_vjp(equation: Any, states: Sequence[State], num_rows: int) -> _Action:
    """Return the action of a function with a custom VJP: both passes are divided."""
    floats = [number for number, atom in enumerate(equation.invars) if is_float(atom)]
    num_results = len(equation.outvars)
    if not all(map(is_float, equation.outvars)):
        raise UndividedError(f"{named(equation)} returns integers")
    structure: Any = None

    def forward(*values: Any) -> list[Any]:
        """Return the results, and the residuals for the backward pass."""

        def of_floats(*given: Any) -> list[Any]:
            return jit_adapter.bound(equation, _replaced(values, floats, given), equation.params)

        nonlocal structure
        results, pull = jit_adapter.plain_vjp()(of_floats, *[values[number] for number in floats])
        residuals, structure = jax.tree.flatten(pull)
        return [*results, *residuals]

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return [*jax.tree.unflatten(structure, residuals)([*cotangents])]

    first = without_rules(jax.make_jaxpr(forward)(*map(_shape, equation.invars)))
    residuals = [*map(_shape, first.jaxpr.outvars[num_results:])]
    second = without_rules(jax.make_jaxpr(backward)(residuals, [*map(_shape, equation.outvars)]))
    of_first = Division(first.jaxpr, [*[None] * len(first.consts), *states], num_rows)
    results = of_first.results[:num_results]
    cotangents = [each if isinstance(each, int) else None for each in results]
    of_second = Division(
        second.jaxpr, [*[None] * len(second.consts), *of_first.results[num_results:], *cotangents], num_rows
    )
    wanted = [_of_gradient(states[number]) for number in floats]
    if any(has not in (each, None) for has, each in zip(of_second.results, wanted, strict=True)):
        raise UndividedError(f"the backward pass of {named(equation)} mixes the rows")

    def run(values: Sequence[Any], piece: Piece) -> list[Any]:
        def of_part(*values: Any) -> tuple[list[Any], list[Any]]:
            found = of_first.part([*first.consts, *values], piece, first.jaxpr.outvars, {})
            return found[:num_results], found[num_results:]

        def of_part_backward(residuals: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
            given = [*second.consts, *residuals, *cotangents]
            found = of_second.part(given, piece, second.jaxpr.outvars, {})
            taken = [piece.taken(*each) for each in zip(found, of_second.results, wanted, strict=True)]
            return tuple(_replaced([None] * len(equation.invars), floats, taken))

        with_rule = jax.custom_vjp(lambda *values: of_part(*values)[0])
        with_rule.defvjp(of_part, of_part_backward)
        return [*with_rule(*values)]

    return _Action(inputs=tuple(states), results=tuple(results), run=run)


def _of_gradient(state: State) -> State:
    """Return the state of an input's gradient: a sum over the parts for a whole input, whole for a sum."""
    if isinstance(state, int):
        return state
    return Total.SUM if state is None else None


def _shape(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def is_float(atom: Any) -> bool:
    """Whether an atom has a dtype that can be differentiated."""
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.inexact))


def _replaced(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Return values with new ones at some places."""
    return [*(dict(enumerate(values)) | dict(zip(places, new, strict=True))).values()]


_CALLS: dict[str, Callable[[Any, Sequence[State], int], _Action]] = {
    **dict.fromkeys(("checkpoint", "remat", "remat2"), _checkpoint),
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "scan": _scan,
}
