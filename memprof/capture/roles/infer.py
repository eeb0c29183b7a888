"""The role of every argument leaf, and what could not be told.

In order: random keys, by dtype; the types of containers; what the program does; and for what is left:

- a float leaf beside parameters in one argument is a parameter that the step does not train, and whatever is beside
  state that is carried from step to step is state;
- an argument whose arrays all have the same first axis, and that does not come back, is input data;
- an argument that is called `params`, exactly, holds parameters where the step takes no gradients;
- float arrays of different shapes that what is differentiated reads are parameters that the step does not train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from memprof.analysis.categories import Role
from memprof.capture.roles.by_type import MODEL_STATE, claims_by_type
from memprof.capture.roles.by_use import ArgumentUse
from memprof.capture.roles.claim import Claim
from memprof.capture.roles.paths import longest_prefix

_KEY = Claim(role=Role.OTHER_STATE, reason="a random key")
_TRAINED = Claim(role=Role.PARAMS, reason="the step differentiates with respect to it and updates it")
_GRADIENT_RETURNED = Claim(role=Role.PARAMS, reason="the step returns its gradient")
_UPDATED = Claim(
    role=Role.OPTIMIZER_STATE, reason="updated with gradients, and nothing that is differentiated reads it"
)
_CARRIED = Claim(role=Role.OTHER_STATE, reason="carried from step to step without gradients")
_FROZEN = Claim(role=Role.PARAMS, reason="read by what is differentiated, but not trained")
_BESIDE = Claim(role=Role.PARAMS, reason="a float array beside parameters")
_BESIDE_STATE = Claim(role=Role.OTHER_STATE, reason="beside state that is carried from step to step")
_BATCH = Claim(role=Role.BATCH, reason="arrays with one first axis that do not come back")
_NAMED = Claim(role=Role.PARAMS, reason="an argument called params, of a step without gradients")
_SCALAR = Claim(role=Role.OTHER_STATE, reason="a scalar")
UNTOLD = Claim(role=Role.OTHER_STATE, reason="could not be told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
        argument: the name of the argument that it is a part of.
    """

    path: str
    argument: str
    shape: tuple[int, ...]
    dtype: Any
    use: ArgumentUse

    @property
    def is_float(self) -> bool:
        return bool(jax.numpy.issubdtype(self.dtype, jax.numpy.inexact))

    @property
    def is_key(self) -> bool:
        """A random key, new style or, as the two words of the default generator, old style."""
        return bool(jax.dtypes.issubdtype(self.dtype, jax.dtypes.prng_key)) or (
            self.shape == (2,) and self.dtype == jax.numpy.uint32
        )


def infer_roles(arguments: Mapping[str, Any], leaves: Sequence[Leaf]) -> list[Claim]:
    """A claim for each leaf.

    Args:
        arguments: the step's arguments by name, as the user gave them.
    """
    by_type = claims_by_type(arguments)
    claims: list[Claim | None] = [_first_claim(leaf, by_type) for leaf in leaves]
    takes_gradients = any(claim in (_TRAINED, _GRADIENT_RETURNED) for claim in claims) or any(
        leaf.use.is_trained for leaf in leaves
    )
    members: dict[str, list[int]] = {}
    for number, leaf in enumerate(leaves):
        members.setdefault(leaf.argument, []).append(number)
    for numbers in members.values():
        _complete(leaves, claims, numbers, takes_gradients)
    return [claim or UNTOLD for claim in claims]


def disagreements(leaves: Sequence[Leaf], claims: Sequence[Claim]) -> list[str]:
    """Sentences about arguments whose role, as their types tell it, is not what the program does with them."""
    return [
        *_disagreement(
            leaves,
            claims,
            lambda leaf, claim: claim.role is Role.PARAMS and leaf.use.is_trained and not leaf.use.is_differentiated,
            "is taken for parameters, but nothing that is differentiated reads it (an average of parameters, perhaps)",
        ),
        *_disagreement(
            leaves,
            claims,
            lambda leaf, claim: (
                claim.role in (Role.OPTIMIZER_STATE, Role.BATCH)
                and bool(leaf.shape)
                and leaf.use.is_trained
                and leaf.use.is_differentiated
            ),
            "is differentiated and updated as parameters are, but is not taken for parameters",
        ),
    ]


def _disagreement(
    leaves: Sequence[Leaf], claims: Sequence[Claim], disagrees: Callable[[Leaf, Claim], bool], what: str
) -> list[str]:
    paths = [leaf.path for leaf, claim in zip(leaves, claims, strict=True) if disagrees(leaf, claim)]
    if not paths:
        return []
    others = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return [f"{paths[0]}{others} {what}; if that is wrong, say what it is with --role '{paths[0]}=...' or roles="]


def _first_claim(leaf: Leaf, by_type: Mapping[str, Claim]) -> Claim | None:
    if leaf.is_key:
        return _KEY
    prefix = longest_prefix(leaf.path, by_type)
    claim = None if prefix is None else by_type[prefix]
    if claim is not None and claim is not MODEL_STATE:
        return claim
    return _claim_by_use(leaf) or claim


def _claim_by_use(leaf: Leaf) -> Claim | None:
    if leaf.use.is_differentiated_for:
        return _GRADIENT_RETURNED
    if leaf.use.is_trained and leaf.is_float:
        if not leaf.use.is_differentiated:
            return _UPDATED
        return _TRAINED if leaf.shape else None  # a scalar: the scale of the loss, more likely
    return _CARRIED if leaf.use.is_carried else None


def _complete(leaves: Sequence[Leaf], claims: list[Claim | None], numbers: list[int], takes_gradients: bool) -> None:
    """Claim what is left of one argument."""
    left = [number for number in numbers if claims[number] is None]
    is_all_left = all(claims[number] in (None, _KEY) for number in numbers)  # a batch may come with the step's key
    if any((claim := claims[number]) is not None and claim.role is Role.PARAMS for number in numbers):
        for number in left:
            claims[number] = _BESIDE if leaves[number].is_float else UNTOLD
        return
    if any(claims[number] is _CARRIED for number in numbers):
        for number in left:
            claims[number] = _BESIDE_STATE
        return
    arrays = [number for number in left if leaves[number].shape]
    for number in left:
        if not leaves[number].shape:
            claims[number] = _SCALAR
    if not takes_gradients and leaves[numbers[0]].argument == "params":
        verdict = _NAMED
    elif is_all_left and len({leaves[number].shape[0] for number in arrays}) == 1:
        verdict = _BATCH
    elif all(leaves[number].is_float and leaves[number].use.is_differentiated for number in arrays):
        verdict = _FROZEN
    else:
        verdict = UNTOLD
    for number in arrays:
        claims[number] = verdict
