"""The role of each argument leaf, and the leaves whose role could not be inferred.

The principle: a gradient of the loss with respect to the *params* updates them; *optimizer_state* enters that update
and comes back; *other_state* comes back otherwise; the *batch* does not come back. The data flow of the traced program
proves this; container types are evidence if the data flow leaves the role open.

The rules, in order: the user's roles; random keys; leaves that the program trains, averages or carries; container
types; leaves that are read along data axes. For the remaining leaves:

- a leaf in a container with leaves of one role only gets that role: a bias beside untrained weights, a count of nodes
  beside a graph's features. Leaves along parameter axes (masks, permutations, means) do not become part of a batch;
- an argument whose arrays all have the same first axis, and that does not come back, is input data;
- an argument called exactly `params` holds parameters if the step takes no gradients;
- float arrays of different shapes that differentiated operations read are untrained parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from memprof.analysis.records.categories import Role
from memprof.sources.jax.roles.by_data import (
    DataUse,
    ambiguous,
    applied,
    applied_together,
    data_uses,
    looked_up,
    numbers_looked_up,
)
from memprof.sources.jax.roles.by_type import INEXACT, MODEL_STATE, OPTIMIZER_STATE, SIMULATION
from memprof.sources.jax.roles.by_use import Program, bits_of
from memprof.sources.jax.roles.leaf import Claim, all_prefixes, longest_prefix
from memprof.sources.jax.roles.updates import ArgumentUse
from memprof.sources.jax.roles.walk import is_key

_KEY = Claim(role=Role.OTHER_STATE, reason="a random key")
_AVERAGE = Claim(role=Role.OTHER_STATE, reason="made from new parameters, which do not depend on it")
_POSITION = Claim(role=Role.OTHER_STATE, reason="a random draw accepts or rejects its next value, as a sampler does")
_OF_GRADIENTS = Claim(role=Role.OTHER_STATE, reason="made from gradients, but no parameters are made from it")
_ENTERS = Claim(role=Role.OPTIMIZER_STATE, reason="is returned, and enters the update of parameters")
_UNUSED = Claim(role=Role.PARAMS, reason="updated by an optimizer, with a gradient of zero")
_TRAINED = Claim(role=Role.PARAMS, reason="the step differentiates with respect to it and updates it")
_GRADIENT_RETURNED = Claim(role=Role.PARAMS, reason="the step returns its gradient")
_UPDATED = Claim(
    role=Role.OPTIMIZER_STATE, reason="updated with gradients, but not read in the differentiated computation"
)
_CARRIED = Claim(role=Role.OTHER_STATE, reason="carried from step to step without gradients")
_FROZEN = Claim(role=Role.PARAMS, reason="applied to data, but not trained")
_BESIDE = Claim(role=Role.PARAMS, reason="a float array beside parameters")
_BESIDE_STATE = Claim(role=Role.OTHER_STATE, reason="beside state that is carried from step to step")
_BESIDE_OPTIMIZER = Claim(role=Role.OPTIMIZER_STATE, reason="beside optimizer state")
_DATA = Claim(role=Role.BATCH, reason="parameters are applied along its first axis")
_BESIDE_DATA = Claim(role=Role.BATCH, reason="beside a batch, and not aligned with parameters")
_ONE_AXIS = Claim(role=Role.BATCH, reason="arrays with a common first axis that are not returned")
_ALONG = Claim(role=Role.OTHER_STATE, reason="aligned with parameters, not with the batch")
_SCALE = Claim(role=Role.OTHER_STATE, reason="multiplies parameters")
_NAMED = Claim(role=Role.PARAMS, reason="an argument called params, in a step without gradients")
_APPLIED = Claim(role=Role.PARAMS, reason="applied to results of the data and of its own argument")
_CACHE = Claim(role=Role.KV_CACHE, reason="written at an index, and read by attention")
_ONLY_READ = Claim(role=Role.KV_CACHE, reason="keys and values that attention reads unchanged")
_SCALAR = Claim(role=Role.OTHER_STATE, reason="a scalar that is returned")
_GIVEN_SCALAR = Claim(role=Role.BATCH, reason="a scalar that is not returned")
UNKNOWN = Claim(role=Role.OTHER_STATE, reason="could not be inferred")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
        argument: the name of the argument that it belongs to.
        given: the user's role, or None.
    """

    path: str
    argument: str
    shape: tuple[int, ...]
    dtype: Any
    use: ArgumentUse
    given: Role | None = None

    @property
    def is_float(self) -> bool:
        return bool(jax.numpy.issubdtype(self.dtype, jax.numpy.inexact))


def typed_states(by_type: Mapping[str, Claim], paths: Sequence[str]) -> frozenset[int]:
    """Return the leaves that are state of an optimizer or a simulation by their types."""
    claims = _typed(by_type, paths)
    return frozenset(n for n, claim in enumerate(claims) if claim in (OPTIMIZER_STATE, SIMULATION))


def _typed(by_type: Mapping[str, Claim], paths: Sequence[str]) -> list[Claim | None]:
    prefixes = (longest_prefix(path, by_type) for path in paths)
    return [None if prefix is None else by_type[prefix] for prefix in prefixes]


def infer_roles(by_type: Mapping[str, Claim], leaves: Sequence[Leaf], program: Program) -> list[Claim]:
    """Return a claim for each leaf.

    Args:
        by_type: claims by the types of the step's arguments, by path (see `claims_by_type`).
        program: the followed step.
    """
    typed = _typed(by_type, [leaf.path for leaf in leaves])
    optimizers = bits_of({n for n, claim in enumerate(typed) if claim is OPTIMIZER_STATE})
    caches = 0 if program.is_training else program.walk.caches.leaves()
    claims = [
        _CACHE if caches >> n & 1 and _may_be_cache(leaf) else _first_claim(leaf, claim, program, optimizers)
        for n, (leaf, claim) in enumerate(zip(leaves, typed, strict=True))
    ]
    _claim_whole_averages(by_type, leaves, claims)
    if not program.is_training:
        every_leaf = (1 << len(leaves)) - 1
        _claim_applied(leaves, claims, program, _only_read(leaves, claims, program, every_leaf))
    parameters = {
        n for n, claim in enumerate(claims) if claim is not None and (claim.role is Role.PARAMS or claim is _POSITION)
    }
    data = data_uses(program, parameters, {n for n, claim in enumerate(claims) if claim is None})
    _claim_only_read(leaves, claims, data, program)
    claims = [
        claim or _claim_by_data(leaf, use, weak)
        for leaf, claim, use, weak in zip(leaves, claims, data, typed, strict=True)
    ]
    claims = [_without_false_state(n, leaves, claims, data) for n in range(len(leaves))]
    completed = [claim or _beside(n, leaves, claims, data, program) for n, claim in enumerate(claims)]
    _complete(leaves, completed, data, program)
    return [claim or UNKNOWN for claim in completed]


def trains_nothing(leaves: Sequence[Leaf], claims: Sequence[Claim], program: Program) -> bool:
    """Whether a step returns state that no gradient updates."""
    is_trained = program.is_training or any(claim in (_UNUSED, _UPDATED) for claim in claims)
    states = (
        leaf.use.is_changed and claim.role is Role.OTHER_STATE and claim is not _KEY
        for leaf, claim in zip(leaves, claims, strict=True)
    )
    has_cache = _CACHE in claims or _ONLY_READ in claims
    return not is_trained and not has_cache and any(states)


def disagreements(leaves: Sequence[Leaf], claims: Sequence[Claim]) -> list[str]:
    """Return sentences about arguments whose role by type contradicts their use in the program."""
    return [
        *_disagreement(
            leaves,
            claims,
            lambda leaf, claim: claim.role is Role.PARAMS and leaf.use.is_trained and not leaf.use.is_differentiated,
            "counts as parameters, but is not read in the differentiated computation",
        ),
        *_disagreement(
            leaves,
            claims,
            lambda leaf, claim: claim.role is Role.OPTIMIZER_STATE and bool(leaf.shape) and leaf.use.is_parameter,
            "is differentiated and updated like parameters, but does not count as parameters",
        ),
    ]


def _disagreement(
    leaves: Sequence[Leaf], claims: Sequence[Claim], disagrees: Callable[[Leaf, Claim], bool], what: str
) -> list[str]:
    paths = [leaf.path for leaf, claim in zip(leaves, claims, strict=True) if disagrees(leaf, claim)]
    if not paths:
        return []
    others = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return [f"{paths[0]}{others} {what}; if that is wrong, set its role with --role '{paths[0]}=...' or roles="]


def _may_be_cache(leaf: Leaf) -> bool:
    return leaf.given is None and bool(leaf.shape) and leaf.use.is_changed and not is_key(leaf)


def _only_read(leaves: Sequence[Leaf], claims: Sequence[Claim | None], program: Program, weights: int) -> set[int]:
    """Return leaves that may be keys and values that the step only reads; see `Caches.only_read`.

    The set is empty if the step differentiates, as a sampler of a network's weights does: there, products go both ways.
    """
    if program.is_training or program.walk.differentiated:
        return set()
    found = program.walk.caches.only_read(weights)
    return {n for n in program.leaves(found) if _may_be_only_read(leaves[n], claims[n])}


def _claim_only_read(
    leaves: Sequence[Leaf], claims: list[Claim | None], data: Sequence[DataUse], program: Program
) -> None:
    """Claim keys and values that attention only reads. Beside parameters they must have a batch axis."""
    parameters = _parameters(claims)
    with_parameters = {leaves[n].argument for n in parameters}
    for n in _only_read(leaves, claims, program, bits_of(parameters)):
        if leaves[n].argument not in with_parameters or data[n].has_batch_axis:
            claims[n] = _ONLY_READ


def _may_be_only_read(leaf: Leaf, claim: Claim | None) -> bool:
    is_open = claim is None or (claim.role is Role.OTHER_STATE and claim is not _KEY)
    is_numbers = leaf.is_float or (len(leaf.shape) > 2 and str(leaf.dtype) != "bool")  # a mask of tokens is neither
    return leaf.given is None and is_open and is_numbers


def _first_claim(leaf: Leaf, typed: Claim | None, program: Program, optimizers: int) -> Claim | None:
    """Return the claim that training supports or, if there is none, the claim by type.

    Args:
        optimizers: the leaves that are optimizer state by their types, as bits.
    """
    use = leaf.use
    if leaf.given is not None:
        return Claim(role=leaf.given, reason="given by the user")
    if is_key(leaf) or (use.is_key and str(leaf.dtype) == "uint32" and leaf.shape[-1:] in ((2,), (4,))):
        return _KEY
    if use.is_average and leaf.is_float:
        return _AVERAGE
    if typed in (OPTIMIZER_STATE, SIMULATION):
        return typed
    if use.is_accepted and leaf.is_float and leaf.shape:
        return _POSITION
    if use.is_parameter:
        return _TRAINED
    if use.is_differentiated_for:
        return _GRADIENT_RETURNED
    if leaf.is_float and use.is_carried and not use.is_trained and use.is_made_from & optimizers:
        return _UNUSED
    if _is_update_counter(leaf, program):
        return _ENTERS
    if leaf.shape and use.is_changed and (changed := _claim_changed(leaf, program)) is not None:
        return changed
    if typed is not None and typed not in (MODEL_STATE, INEXACT):
        is_changed = use.is_changed and typed.role is Role.PARAMS and program.is_training
        return _CARRIED if is_changed else typed
    return typed if typed is INEXACT and not program.is_training and not use.is_changed else None


def _is_update_counter(leaf: Leaf, program: Program) -> bool:
    """Whether a scalar counts updates for the update itself, as for a schedule or a bias correction.

    A float is a counter if its next value is made from itself alone. The next loss scale is made from gradients.
    """
    use = leaf.use
    counts = use.is_kept and not use.is_same if leaf.is_float else use.is_changed
    is_counter = not leaf.shape and counts and not use.is_key
    return program.is_training and is_counter and use.enters_update


def _claim_changed(leaf: Leaf, program: Program) -> Claim | None:
    """Return a claim for an array that comes back changed, by its relation to gradients."""
    use = leaf.use
    if not program.is_training:
        is_sampler = any(each.is_accepted for each in program.uses)
        return _UPDATED if use.is_trained and not is_sampler else None
    if use.enters_update and (use.is_trained or leaf.is_float):
        return _UPDATED if use.is_trained else _ENTERS
    return _OF_GRADIENTS if use.is_trained else None


def _claim_whole_averages(by_type: Mapping[str, Claim], leaves: Sequence[Leaf], claims: list[Claim | None]) -> None:
    """Claim the counters in an optimizer's state whose arrays are all averages."""
    members: dict[str, list[int]] = {}
    for n, leaf in enumerate(leaves):
        if (prefix := longest_prefix(leaf.path, by_type)) is not None:
            members.setdefault(prefix, []).append(n)
    for numbers in members.values():
        if {claims[n] for n in numbers if leaves[n].shape} == {_AVERAGE}:
            for n in numbers:
                claims[n] = _AVERAGE


def _claim_applied(leaves: Sequence[Leaf], claims: list[Claim | None], program: Program, only_read: set[int]) -> None:
    """Claim parameters of a step without gradients.

    Args:
        only_read: leaves that attention may read as keys and values. They are excluded, because page tables are looked
            up as weights are.
    """
    for n, leaf in enumerate(leaves):
        if claims[n] is None and leaf.argument == "params" and leaf.shape:
            claims[n] = _NAMED
    if not _parameters(claims):
        left = {n for n, leaf in enumerate(leaves) if claims[n] is None and not leaf.use.is_changed} - only_read
        for n in applied(program, left):
            if leaves[n].is_float:
                claims[n] = _APPLIED
        for together in applied_together(program, left):
            for n in _quantised(leaves, claims, together):
                claims[n] = _APPLIED
    left = {n for n, leaf in enumerate(leaves) if claims[n] is None and not leaf.use.is_changed} - only_read
    for n in looked_up(program, {n for n in left if leaves[n].is_float}, _parameters(claims)):
        claims[n] = _APPLIED
    with_parameters = {leaves[n].argument for n in _parameters(claims)}
    for n in numbers_looked_up(program, left):
        if claims[n] is None and leaves[n].argument in with_parameters:  # a data set is looked up, too
            claims[n] = _APPLIED


def _parameters(claims: Sequence[Claim | None]) -> set[int]:
    return {n for n, claim in enumerate(claims) if claim is not None and claim.role is Role.PARAMS}


def _quantised(leaves: Sequence[Leaf], claims: Sequence[Claim | None], together: set[int]) -> list[int]:
    """Return the integers of quantised weights: a product applies them with smaller parameters, their scales."""
    sizes = {n: prod(leaves[n].shape) for n in together}
    largest = max((sizes[n] for n in together if claims[n] is _APPLIED), default=None)
    integers = [n for n in together if jax.numpy.issubdtype(leaves[n].dtype, jax.numpy.integer)]
    is_quantised = largest is not None and any(sizes[n] > largest for n in integers)
    return integers if is_quantised else []


def _claim_by_data(leaf: Leaf, data: DataUse, typed: Claim | None) -> Claim | None:
    """Return a claim for an untrained leaf, based on the known parameters."""
    use = leaf.use
    if not leaf.shape:
        return typed
    if use.is_changed:
        is_data = data.has_batch_axis and not data.is_along_parameters
        is_data = is_data and not use.is_contained and not use.keeps_elements
        return _DATA if is_data else _CARRIED
    if data.has_batch_axis:  # if its container comes back, the neighbours decide
        return None if use.is_contained else _DATA
    if data.is_weight:
        return _FROZEN
    if data.is_scale and data.is_along_parameters:
        return _SCALE
    return typed


def _without_false_state(
    n: int, leaves: Sequence[Leaf], claims: Sequence[Claim | None], data: Sequence[DataUse]
) -> Claim | None:
    """Return a leaf's claim, corrected if data was taken for state because of a similar result (per-example loss)."""
    if claims[n] is not _CARRIED or not data[n].has_batch_axis or leaves[n].use.is_in_place:
        return claims[n]
    is_beside_data = any(
        claim is _DATA and leaf.argument == leaves[n].argument for leaf, claim in zip(leaves, claims, strict=True)
    )
    is_result = len(leaves[n].shape) == 1 and not leaves[n].use.is_added_to  # a running sum is a score, or a position
    return _DATA if is_beside_data or is_result else _CARRIED


def _beside(
    n: int, leaves: Sequence[Leaf], claims: Sequence[Claim | None], data: Sequence[DataUse], program: Program
) -> Claim | None:
    """Return a claim from the other leaves of the smallest container with known roles."""
    leaf = leaves[n]
    for prefix in list(all_prefixes(leaf.path))[1:]:
        roles = {
            claim.role
            for other, claim in zip(leaves, claims, strict=True)
            if claim not in (None, _KEY, _SCALE, _SCALAR)
            and other.path.startswith(prefix)
            and other.path[len(prefix) : len(prefix) + 1] in (".", "[")
        }
        if len(roles) == 1:
            return _by_role(leaf, data[n], roles.pop(), program)
        if roles:
            return None
    return None


def _by_role(leaf: Leaf, data: DataUse, role: Role, program: Program) -> Claim | None:
    if role is Role.PARAMS:
        if not leaf.shape and program.is_training:  # a parameter would be trained
            return None
        is_other = data.is_statistic or (data.is_scale and bool(leaf.shape))
        return _BESIDE if leaf.is_float and not is_other else None
    if role is Role.BATCH:
        return _BESIDE_DATA if leaf.shape and not data.is_along_parameters else None
    if role is Role.OPTIMIZER_STATE:
        return _BESIDE_OPTIMIZER if leaf.shape or leaf.use.enters_update else None
    if role is Role.KV_CACHE and not leaf.use.is_carried:
        return None  # a mask for read-only keys and values, or their lengths
    return _BESIDE_STATE


def _complete(leaves: Sequence[Leaf], claims: list[Claim | None], data: Sequence[DataUse], program: Program) -> None:
    """Claim the remaining leaves, argument by argument."""
    has_batch = any(claim is not None and claim.role is Role.BATCH for claim in claims)
    unknown = ambiguous(program, {n for n, claim in enumerate(claims) if claim is None})
    members: dict[str, list[int]] = {}
    for n, leaf in enumerate(leaves):
        members.setdefault(leaf.argument, []).append(n)
    for numbers in members.values():
        arrays = [n for n in numbers if claims[n] is None and leaves[n].shape]
        # A batch may contain the step's key.
        is_all_left = all(claims[n] in (None, _KEY) for n in numbers) and not any(
            data[n].is_along_parameters or (n in unknown and (len(arrays) == 1 or not leaves[n].is_float))
            for n in arrays
        )
        is_read = all(leaves[n].is_float and leaves[n].use.is_differentiated for n in arrays)
        for n in numbers:
            if claims[n] is not None:
                continue
            if leaves[n].use.is_carried and not (data[n].has_batch_axis and leaves[n].use.is_kept):
                claims[n] = _CARRIED
            elif not leaves[n].shape:
                claims[n] = _SCALAR if leaves[n].use.is_kept or leaves[n].use.is_contained else _GIVEN_SCALAR
            elif data[n].has_batch_axis:
                claims[n] = _DATA
            elif has_batch and data[n].is_along_parameters:
                claims[n] = _ALONG
            elif is_all_left and len({leaves[each].shape[0] for each in arrays}) == 1:
                claims[n] = _ONE_AXIS
            elif is_read and not has_batch and is_all_left:
                claims[n] = _FROZEN
