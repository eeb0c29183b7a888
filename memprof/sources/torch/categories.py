"""The category of a storage: an ordered table of rules over the facts that the trace recorded. Needs no torch.

The first rule that claims a storage decides. A rule uses the role of the tensor, the phase that makes it, its inputs,
and whether the backward pass uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

from memprof.analysis.records.categories import Category, Phase, Role


class Depends(Flag):
    """The kinds of inputs that a value depends on."""

    NOTHING = 0
    PARAMS = auto()
    DATA = auto()
    RANDOM = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that the trace recorded about one storage.

    Attributes:
        role: role of the tensor that the model, the optimizer or the batch keeps in it; None if it is not kept.
        is_gradient: it was a parameter's `.grad`, or was added to one.
        phase: the phase in which it was made.
        is_workspace: it is the scratch memory of a library.
        communicates: the category of a buffer of the communication between devices; None if it is no such buffer.
        is_used_in_backward: an operation of the backward pass, or of a recomputation in it, read it.
    """

    role: Role | None
    is_gradient: bool
    phase: Phase
    depends: Depends
    is_used_in_backward: bool
    communicates: Category | None = None
    is_workspace: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The category of a storage, and the reason."""

    category: Category
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    category: Category
    evidence: str
    holds: Callable[[Facts], bool]


def claim(facts: Facts) -> Claim:
    """Return the category of a storage."""
    if facts.role is not None:
        return Claim(Category(facts.role.value), f"{facts.role.value} of the step", "held by its owner between steps")
    for rule in _RULES:
        if rule.holds(facts):
            return Claim(rule.category, rule.name, rule.evidence)
    return Claim(Category.UNATTRIBUTED, "unattributed", "no rule explains it")


_FORWARD = (Phase.FORWARD, Phase.RECOMPUTE, Phase.UNDIFFERENTIATED)
_RULES = (
    _Rule("gradient", Category.GRADIENTS, "a parameter's .grad, or added to one", lambda facts: facts.is_gradient),
    _Rule(
        "workspace",
        Category.WORKSPACE,
        "scratch memory that PyTorch keeps for cuBLAS",
        lambda facts: facts.is_workspace,
    ),
    _Rule(
        "gathered parameter",
        Category.GATHERED_PARAMS,
        "parameters, partly received from other devices",
        lambda facts: facts.communicates is Category.GATHERED_PARAMS,
    ),
    _Rule(
        "communication",
        Category.COLLECTIVES,
        "a flat buffer of the communication between devices",
        lambda facts: facts.communicates is Category.COLLECTIVES,
    ),
    _Rule(
        "held before the step",
        Category.OTHER_STATE,
        "exists before the first step",
        lambda facts: facts.phase is Phase.ARGUMENT,
    ),
    _Rule(
        "parameter copy",
        Category.PARAM_COPIES,
        "depends only on parameters",
        lambda facts: facts.phase in _FORWARD and facts.depends is Depends.PARAMS,
    ),
    _Rule(
        "constant",
        Category.CONSTANTS,
        "depends on no tensor",
        lambda facts: facts.phase in _FORWARD and facts.depends is Depends.NOTHING,
    ),
    _Rule(
        "recomputed",
        Category.RECOMPUTED,
        "a checkpoint recomputes it in the backward pass",
        lambda facts: facts.phase is Phase.RECOMPUTE,
    ),
    _Rule(
        "saved for backward",
        Category.ACTIVATIONS,
        "made in the forward pass, used in the backward pass",
        lambda facts: facts.phase is Phase.FORWARD and facts.is_used_in_backward,
    ),
    _Rule(
        "forward temporary",
        Category.FORWARD_TEMPS,
        "made in the forward pass, not used in the backward pass",
        lambda facts: facts.phase is Phase.FORWARD,
    ),
    _Rule(
        "outside differentiation",
        Category.FORWARD_TEMPS,
        "made without recording gradients",
        lambda facts: facts.phase is Phase.UNDIFFERENTIATED,
    ),
    _Rule(
        "cotangent",
        Category.COTANGENTS,
        "made in the backward pass, not the gradient of a parameter",
        lambda facts: facts.phase is Phase.BACKWARD,
    ),
    _Rule("update temporary", Category.UPDATE_TEMPS, "made in the update", lambda facts: facts.phase is Phase.UPDATE),
)
