"""Divide a function into equal parts of its rows, and compute one part.

Each value of the function is one of these:

- whole: it depends on no row, so that every part may compute or read it;
- an array with the rows along an axis, or several groups of them: a part computes its rows alone;
- a sum over all rows (`Total.SUM`): the sums of all parts add up to it;
- a result of an operation that mixes rows, or is not linear in their sums (`Total.LATER`): it is computed once, at the
  end.

If a loss is such a sum, its gradients are sums, too. For example, a mean over examples is a sum divided by a constant.
Batch statistics are sums that the forward pass needs for each row, so a function with them cannot be divided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.actions import Action, UndividedError, named, of_own_rows, of_rows, of_sums
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.divided_calls import CALLS
from memprof.sources.jax.checkpointing.evaluation import bind, value_of
from memprof.sources.jax.checkpointing.pieces import Grouped, Piece, State, Total, axis_of, in_groups, num_groups
from memprof.sources.jax.checkpointing.row_groups import regrouped
from memprof.sources.jax.checkpointing.rows import Axis, rows_behind
from memprof.sources.jax.tracing import jit_adapter


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
        self._actions: dict[int, Action] = {}
        self.outside: dict[Any, None] = {}
        self._prepared: set[tuple[Any, State]] = set()
        self.reasons: dict[Any, str] = {}
        self.divided_bytes = self.whole_bytes = 0
        self._of_data = {var for var in jaxpr.constvars if var.aval.ndim}
        self._makers = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
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
        variables = [*self._jaxpr.constvars, *self._jaxpr.invars]
        known = {(var, self.state(var)): value for var, value in zip(variables, inputs, strict=True)}

        def taken(atom: Any, wanted: State) -> Any:
            if not isinstance(atom, core.Var):
                return piece.taken(atom.val, None, wanted)
            if (atom, wanted) in known:
                return known[atom, wanted]
            if atom in outside:
                return piece.taken(outside[atom], None, wanted)
            return piece.taken(known[atom, self.state(atom)], self.state(atom), wanted)

        for equation, action in self._needed(wanted, {*variables, *outside}):
            with jit_adapter.name_of(equation):
                values = [taken(*each) for each in zip(equation.invars, action.inputs, strict=True)]
                made = zip(equation.outvars, action.results, strict=True)
                known.update(zip(made, action.run(values, piece), strict=True))
        return [taken(atom, self.state(atom)) for atom in wanted]

    def _needed(self, wanted: Collection[Any], given: Collection[Any]) -> list[tuple[Any, Action]]:
        """Return the equations that a part computes for wanted variables, each with its action, in order."""
        pending: dict[Any, dict[State, None]] = {}

        def need(atoms: Iterable[tuple[Any, State]]) -> None:
            for atom, state in atoms:
                if isinstance(atom, core.Var) and atom not in given:
                    has = self.state(atom)
                    pending.setdefault(atom, {})[has if self._of_rows_alone(atom, state) is None else state] = None

        need((atom, self.state(atom)) for atom in wanted)
        found: list[tuple[Any, Action]] = []
        for number in reversed(range(len(self._jaxpr.eqns))):
            equation = self._jaxpr.eqns[number]
            states = dict.fromkeys(state for var in equation.outvars for state in pending.get(var, ()))
            alone = [self._of_rows_alone(equation.outvars[0], state) for state in states]
            for action in {id(each): each for each in (each or self._actions[number] for each in alone)}.values():
                found.append((equation, action))
                need(zip(equation.invars, action.inputs, strict=True))
        return found[::-1]

    def _add(self, number: int, equation: Any) -> None:
        is_fixed = all(map(self._is_fixed, equation.invars))
        if self._fixed is not None and is_fixed:
            self._fixed.update(equation.outvars)
        if any(isinstance(atom, core.Var) and atom in self._of_data for atom in equation.invars):
            self._of_data.update(equation.outvars)
        action: Action | None
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
            if self.state(atom) != wanted and self._is_fixed(atom):
                self._make_outside(atom, wanted)
        self._states.update(zip(equation.outvars, action.results, strict=True))
        self._actions[number] = action
        if self._fixed is not None and not is_fixed:
            self._count(equation, action)

    def _of_rows_alone(self, atom: Any, wanted: State) -> Action | None:
        """Return how a part makes its rows of a whole value, such as a bias that is broadcast to all rows."""
        equation, axis = self._makers.get(atom), axis_of(wanted)
        if equation is None or axis is None or self.state(atom) is not None:
            return None
        rows = rows_behind(equation, axis)
        if rows is None:
            return None
        number = num_groups(wanted)

        def run(values: Sequence[Any], piece: Piece) -> list[Any]:
            here = piece.of_groups(number)
            return jit_adapter.bound(equation, [*values], rows.params(equation.params, here.part_rows, here.num_rows))

        return Action(inputs=tuple(in_groups(each, number) for each in rows.inputs), results=(wanted,), run=run)

    def _make_outside(self, atom: Any, wanted: State) -> None:
        """Compute a value before the parts, or what a part reads to make its rows of it."""
        pending = [(atom, wanted)]
        while pending:
            atom, state = pending.pop()
            if not isinstance(atom, core.Var) or (atom, state) in self._prepared:
                continue
            self._prepared.add((atom, state))
            action = self._of_rows_alone(atom, state)
            if action is None:
                self.outside[atom] = None
            else:
                pending.extend(zip(self._makers[atom].invars, action.inputs, strict=True))

    def _count(self, equation: Any, action: Action) -> None:
        if any(each is not None and each is not Total.LATER for each in action.results):
            self.divided_bytes += _made_bytes(equation)
        elif Total.LATER not in action.results and self._of_data.issuperset(equation.outvars):
            self.whole_bytes += _made_bytes(equation)

    def _checked(self, equation: Any) -> Action:
        """Return the action of an equation whose inputs exist in the states that it needs."""
        action = self._action(equation)
        for atom, wanted in zip(equation.invars, action.inputs, strict=True):
            if self.state(atom) not in (wanted, None) and not self._is_fixed(atom):
                raise UndividedError(f"{named(equation)} mixes the rows")
        return action

    def _later(self, equation: Any, reason: str) -> Action:
        """Return the action of an equation that no part computes."""
        before = next((self.reasons[atom] for atom in equation.invars if self.state(atom) is Total.LATER), reason)
        self.reasons.update(dict.fromkeys(equation.outvars, before))

        def run(values: Sequence[Any], piece: Piece) -> list[Any]:
            raise AssertionError("no part computes this")

        states = tuple(self.state(atom) for atom in equation.invars)
        return Action(inputs=states, results=(Total.LATER,) * len(equation.outvars), run=run)

    def _is_fixed(self, atom: Any) -> bool:
        return self._fixed is not None and (not isinstance(atom, core.Var) or atom in self._fixed)

    def _action(self, equation: Any) -> Action:
        name, states = equation.primitive.name, [self.state(atom) for atom in equation.invars]
        if all(each is None for each in states):
            return Action(
                inputs=tuple(states),
                results=(None,) * len(equation.outvars),
                run=lambda values, piece: jit_adapter.bound(equation, [*values], equation.params),
            )
        if Total.LATER in states:
            raise UndividedError(f"{named(equation)} reads a result of all rows")
        if name in CALLS:
            return CALLS[name](equation, states, self._num_rows, Division)
        return regrouped(equation, states, self._num_rows) or self._of_groups(equation, states)

    def _of_groups(self, equation: Any, states: Sequence[State]) -> Action:
        """Return the action of an equation that treats the groups of rows as one group with more rows."""
        numbers = {num_groups(each) for each in states if axis_of(each) is not None}
        if len(numbers) > 1:
            raise UndividedError(f"{named(equation)} mixes the rows")
        (number,) = numbers or {1}
        plain = [each.axis if isinstance(each, Grouped) else each for each in states]
        if number == 1:
            return self._of_rows(equation, plain, self._num_rows)
        action = self._of_rows(equation, plain, number * self._num_rows)
        return Action(
            inputs=tuple(in_groups(each, number) for each in action.inputs),
            results=tuple(in_groups(each, number) for each in action.results),
            run=lambda values, piece: action.run(values, piece.of_groups(number)),
        )

    def _of_rows(self, equation: Any, states: Sequence[State], num_rows: int) -> Action:
        if any(isinstance(each, Total) for each in states):
            return of_sums(equation, states)
        if equation.primitive.name == "gather" and (own := self._own_rows(equation, states)) is not None:
            return of_own_rows(equation, states[0], own)
        return of_rows(equation, states, num_rows)

    def _own_rows(self, equation: Any, states: Sequence[State]) -> Axis:
        """Return the row axis of indices by which each row looks up its own row of an array; None for other indices.

        An example is `logits[jnp.arange(n), labels]`.
        """
        (axis, of_indices), (array, indices) = states, equation.invars
        place, sizes = equation.params["dimension_numbers"].start_index_map, equation.params["slice_sizes"]
        joined = next((each for each in self._jaxpr.eqns if indices in each.outvars), None)
        if self._constants is None or joined is None or isinstance(of_indices, Total | Grouped):
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


def _made_bytes(equation: Any) -> int:
    """Return the bytes of all values that an equation makes, also inside it."""
    size = sum(prod(var.aval.shape) * var.aval.dtype.itemsize for var in equation.outvars)
    inside = (each for jaxpr in core.jaxprs_in_params(equation.params) for each in jaxpr.eqns)
    return int(size + equation.params.get("length", 1) * sum(map(_made_bytes, inside)))
