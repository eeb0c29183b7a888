"""Pairs of an argument leaf and the result that is its next value: the leaves that come back from step to step.

Containers decide first: if the step returns an argument, or a part of one, with the same keys, shapes and dtypes, the
returned leaves are the next values. If several containers are equal (online and target parameters), the data flow
chooses the pairs whose results are made from the arguments. A single array has no such structure. It comes back if its
elements flow into a result of its shape, or if a result that depends on it has its name or its place.

Example: `step(params, target, x) -> (new_params, new_target, loss)` has two pairs of equal containers. `new_params` is
made from `params`, and `new_target` from both, so each argument comes back in its own place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from memprof.sources.jax.roles.leaf import all_prefixes
from memprof.sources.jax.roles.updates import Array
from memprof.sources.jax.roles.walk import Made


class Evidence(Enum):
    """The evidence that a result is the next value of an argument leaf."""

    CONTAINER = auto()  # a container of several leaves, or a name, comes back
    PLACE = auto()  # the argument and the result have the same position, after others that come back
    ELEMENTS = auto()  # its elements flow into a result of its shape


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnds:
    """The places of a step's arguments and results.

    Attributes:
        arguments: the path of each argument leaf.
        results: the keys of each result.
        owners: the number of the argument that each leaf belongs to, in order.
        positions: positions of the positional arguments, by name.
        known: the result that is the next value of a leaf, by leaf, if the framework says so.
        fields: field names of the named tuple that the step returns, if any.
        states: leaves that are state of an optimizer or a simulation by their types, and so no parameters.
    """

    arguments: Sequence[str]
    results: Sequence[str]
    owners: Sequence[int]
    positions: Mapping[str, int]
    known: Mapping[int, int]
    fields: Sequence[str] = ()
    states: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NextValue:
    """The next value of one argument leaf.

    Attributes:
        result: the number of the result.
    """

    result: int
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The leaves at one end of a step: of its arguments, or of its results.

    Attributes:
        paths: `state.params['w']` for an argument; only the keys for a result, `[0].params['w']`.
        made: the origins of each leaf.
    """

    paths: Sequence[str]
    arrays: Sequence[Array]
    made: Sequence[Made]


_Signature = tuple[tuple[str, Array], ...]
_MADE_FROM, _SAME_NAME, _PER_LEAF, _SAME_PLACE, _DEPENDS = 1.0, 0.2, 0.001, 0.0005, 0.0001


def next_values(arguments: Ends, results: Ends, *, step: StepEnds, differentiated: int) -> list[NextValue | None]:
    """Return the next value of each argument leaf, or None if it does not come back.

    Args:
        differentiated: the leaves that differentiated operations read, as bits.
    """
    matching = _Matching(arguments, results, step, differentiated)
    for leaf, result in step.known.items():
        matching.pair(leaf, result, Evidence.CONTAINER)
    matching.match_containers()
    matching.match_arrays()
    return matching.found


class _Matching:
    def __init__(self, arguments: Ends, results: Ends, step: StepEnds, differentiated: int) -> None:
        self._arguments, self._results = arguments, results
        self._step, self._differentiated = step, differentiated
        self.found: list[NextValue | None] = [None] * len(arguments.paths)
        self._taken: set[int] = set()
        self._nodes: dict[str, str] = {}  # the result container of each argument container that comes back

    def pair(self, leaf: int, result: int, evidence: Evidence) -> None:
        """Record a result as the next value of a leaf."""
        self.found[leaf] = NextValue(result=result, evidence=evidence)
        self._taken.add(result)

    def match_containers(self) -> None:
        """Pair equal containers of several leaves, the largest first."""
        arguments, results = _containers(self._arguments), _containers(self._results)
        for signature in sorted(arguments.keys() & results.keys(), key=len, reverse=True):
            if len(signature) < 2:
                continue
            inside = {path: leaves for path, leaves in arguments[signature].items() if not self._are_found(leaves)}
            outside = {path: leaves for path, leaves in results[signature].items() if not self._are_taken(leaves)}
            for one, other in self._assigned(inside, outside):
                self._nodes[one] = other
                for leaf, result in zip(inside[one], outside[other], strict=True):
                    self.pair(leaf, result, Evidence.CONTAINER)

    def match_arrays(self) -> None:
        """Pair arrays whose containers do not come back."""
        by_array: dict[Array, tuple[dict[str, list[int]], dict[str, list[int]]]] = {}
        for ends, place in ((self._arguments, 0), (self._results, 1)):
            for number, (path, array) in enumerate(zip(ends.paths, ends.arrays, strict=True)):
                if not (self._are_found([number]) if place == 0 else self._are_taken([number])):
                    by_array.setdefault(array, ({}, {}))[place][path] = [number]
        for inside, outside in by_array.values():
            for one, other in self._assigned(inside, outside):
                (leaf,), (result,) = inside[one], outside[other]
                evidence = self._evidence(leaf, result)
                if evidence is not None:
                    self._nodes[one] = other
                    self.pair(leaf, result, evidence)

    def _evidence(self, leaf: int, result: int) -> Evidence | None:
        one, other = self._arguments.paths[leaf], self._results.paths[result]
        is_made_from = self._is_made_from(leaf, result)
        if is_made_from or self._results.made[result].itself or self._depends(leaf, result):
            if _last_name(one) == _last_name(other) != "":
                return Evidence.CONTAINER
            if self._is_in_place(one, other):
                return Evidence.PLACE
        is_loss = self._arguments.arrays[leaf].shape == () and not self._results.made[result].directly >> leaf & 1
        return Evidence.ELEMENTS if is_made_from and not is_loss else None

    def _is_in_place(self, one: str, other: str) -> bool:
        """Whether an argument and a result share a position, and so do all returned arguments before it."""
        position, (around, place) = self._step.positions.get(one), self._place(other)
        if position is None or position != place:
            return False
        are_in_place = {
            number: self._place(self._nodes[name]) == (around, number)
            for name, number in self._step.positions.items()
            if name in self._nodes and name != one
        }
        before = [is_in_place for number, is_in_place in are_in_place.items() if number < position]
        return all(before) and any(are_in_place.values())

    def _place(self, result: str) -> tuple[str, int | None]:
        """Return the tuple or named tuple that holds a result, and the result's number in it."""
        around, _, number = result.rpartition("[")
        if number[:-1].isdigit():
            return around, int(number[:-1])
        name = result.removeprefix(".")
        return ("", self._step.fields.index(name)) if name in self._step.fields else (result, None)

    def _assigned(self, inside: Mapping[str, list[int]], outside: Mapping[str, list[int]]) -> Iterator[tuple[str, str]]:
        """Yield pairs of equal containers by their scores. Containers that don't depend on each other stay unpaired."""
        ones, others = list(inside), list(outside)
        scores = np.array([[self._score(one, inside[one], other, outside[other]) for other in others] for one in ones])
        if not scores.size:
            return
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # takes 0.4 s

        are_updated = bool((scores >= _MADE_FROM / 2).any())
        for row, column in zip(*linear_sum_assignment(scores, maximize=True), strict=True):
            one, other = ones[row], others[column]
            pairs = list(zip(inside[one], outside[other], strict=True))
            is_own = self._is_alike(one, other) or any(self._is_made_from(*pair) for pair in pairs)
            # Gradients that are returned beside new parameters are not a next value.
            is_gradient = are_updated and all(self._is_gradient(result) for _, result in pairs)
            if is_own or (not is_gradient and any(self._depends(*pair) for pair in pairs)):
                yield one, other

    def _score(self, one: str, leaves: Sequence[int], other: str, results: Sequence[int]) -> float:
        score = 0.0
        for leaf, result in zip(leaves, results, strict=True):
            made = self._results.made[result]
            score += _MADE_FROM * self._is_made_from(leaf, result)
            score += _DEPENDS * self._depends(leaf, result)
            # A moment is made from fewer leaves than the parameters that it updates.
            is_moment = not self._differentiated >> leaf & 1
            score -= _PER_LEAF * min(made.directly.bit_count(), 99) * is_moment
        score /= len(leaves)
        score += _SAME_NAME * (_last_name(one) == _last_name(other) != "")
        return score + _SAME_PLACE * (self._place(other)[1] == self._step.positions.get(one, -1))

    def _is_alike(self, one: str, other: str) -> bool:
        """Whether two equal containers share a name, or a position at the ends of the step."""
        return _last_name(one) == _last_name(other) != "" or self._is_in_place(one, other)

    def _is_made_from(self, leaf: int, result: int) -> bool:
        made = self._results.made[result]
        return bool((made.lineage | made.directly) >> leaf & 1)

    def _is_gradient(self, result: int) -> bool:
        made = self._results.made[result]
        return made.of_gradients and not made.directly

    def _depends(self, leaf: int, result: int) -> bool:
        made = self._results.made[result]
        return bool((made.sources | made.directly) >> leaf & 1)

    def _are_found(self, leaves: Sequence[int]) -> bool:
        return any(self.found[leaf] is not None for leaf in leaves)

    def _are_taken(self, results: Sequence[int]) -> bool:
        return not self._taken.isdisjoint(results)


def _containers(ends: Ends) -> dict[_Signature, dict[str, list[int]]]:
    """Return the containers at one end of a step by their contents: inner paths, shapes and dtypes."""
    members: dict[str, list[int]] = {}
    for number, path in enumerate(ends.paths):
        for prefix in (*all_prefixes(path), *([] if path[:1] not in ("", "[", ".") else [""])):
            members.setdefault(prefix, []).append(number)
    found: dict[_Signature, dict[str, list[int]]] = {}
    for prefix, leaves in members.items():
        inside = sorted((ends.paths[leaf][len(prefix) :], ends.arrays[leaf], leaf) for leaf in leaves)
        signature = tuple((path, array) for path, array, _ in inside)
        found.setdefault(signature, {})[prefix] = [leaf for _, _, leaf in inside]
    return found


def _last_name(path: str) -> str:
    """Return the last key of a path if it is a name, not a number."""
    key = path[len(next(iter(list(all_prefixes(path))[1:]), "")) :].strip(".[]'\"")
    return "" if key.isdigit() else key
