"""The rules of attribution, which assign a category to each value.

`RULES` is tried in order, and the first rule that explains a value decides. Each rule is a function that returns the
category and a reason in one sentence, or None to pass the value on. Reports show the rule's name. The order is part of
the meaning: a rule sees only values that all earlier rules have passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memprof.analysis.attribution.dataflow import FROM_PARAMS, ROLES, SOURCES, Origin, Use
from memprof.analysis.attribution.values import Value
from memprof.analysis.hlo.program import COLLECTIVES
from memprof.analysis.hlo.rematerialization import is_rematerialized
from memprof.analysis.records.categories import Category, Phase

Explanation = tuple[Category, str] | None
Rule = Callable[[Value], Explanation]

# The phases of a forward pass, differentiated or not.
_FORWARD = {Phase.FORWARD: "in the forward pass", Phase.UNDIFFERENTIATED: "outside differentiation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The category of a value, with the rule that assigned it and the reason."""

    category: Category
    rule: str
    evidence: str


def arguments(value: Value) -> Explanation:
    """Memory of an argument: the category of the argument's role.

    XLA may write results or intermediate values into the memory of a donated argument. It is still the caller's memory
    and is counted once, here.
    """
    if value.argument is None:
        return None
    donated = ", donated" if value.argument.donated else ""
    return Category(value.argument.role.value), f"argument {value.argument.path}{donated}"


def outputs(value: Value) -> Explanation:
    """Memory of a result that aliases no argument: the cost of not donating.

    It includes the table of pointers to the results.
    """
    if not value.is_output:
        return None
    return Category.OUTPUTS, "table of pointers to the results" if value.is_tuple_table else "result of the step"


def tuple_tables(value: Value) -> Explanation:
    """Tables of pointers to the elements of a tuple: scratch of the runtime, a few bytes each."""
    return (Category.WORKSPACE, "table of pointers to the elements of a tuple") if value.is_tuple_table else None


def workspace(value: Value) -> Explanation:
    """Scratch memory of library calls (cuBLAS, cuDNN, sort, ...).

    XLA represents a library call's scratch as an extra element of the call's result: an array of bytes without readers.
    """
    is_scratch = value.opcode == "custom-call" and value.element not in ((), (0,)) and value.dtype in ("u8", "s8")
    if not is_scratch or value.use:
        return None
    return Category.WORKSPACE, f"scratch of {value.custom_call_target}"


def constants(value: Value) -> Explanation:
    """Constants of the program, and values that depend on no argument (masks, position numbers, zeros)."""
    if value.is_constant:
        return Category.CONSTANTS, "constant of the program"
    return None if value.origin & ROLES else (Category.CONSTANTS, "does not depend on any argument")


def param_copies(value: Value) -> Explanation:
    """Values that depend on parameters alone, made in any phase.

    With float32 parameters and bfloat16 compute, these are the bfloat16 casts that are kept for the backward pass, and
    also transposes for a layout. What a layer computes from data that the step closes over, or a loop as its state, is
    no copy.
    """
    if value.origin & SOURCES != FROM_PARAMS:
        return None
    return Category.PARAM_COPIES, "depends only on parameters"


def gathered_params(value: Value) -> Explanation:
    """Parameters sharded over several devices, gathered for an operation that needs more than the local shard."""
    if value.origin & SOURCES != FROM_PARAMS or not value.origin & Origin.OTHER_DEVICES:
        return None
    return Category.GATHERED_PARAMS, "depends only on parameters, partly gathered from other devices"


def recomputed(value: Value) -> Explanation:
    """Values of the forward pass that are recomputed in the backward pass.

    Either the program requests it (`jax.checkpoint` names such operations), or XLA recomputes them by itself to stay
    within the device's memory.
    """
    if value.computed_in is Phase.RECOMPUTE:
        return Category.RECOMPUTED, "made by jax.checkpoint in the backward pass"
    if is_rematerialized(value.name):
        return Category.RECOMPUTED, "rematerialised by XLA to save memory"
    return None


def activations(value: Value) -> Explanation:
    """Values used by the backward pass, made in the forward pass or outside differentiation (shuffled data).

    If a value is copied to another layout at once and then dies, the copy is the activation, not the value.
    """
    is_used = value.use & (Use.BACKWARD | Use.RECOMPUTE)
    if value.dies_in_forward or value.computed_in not in _FORWARD or not is_used:
        return None
    return Category.ACTIVATIONS, f"made {_FORWARD[value.computed_in]}, used in the backward pass"


def gradients(value: Value) -> Explanation:
    """Gradients of parameters: values of the backward pass that the update uses.

    They include partial sums, accumulators over minibatches, and clipped and averaged gradients: all values made from
    gradients after differentiation, until parameters or optimizer state are read.
    """
    if value.computed_in is not Phase.BACKWARD:
        return None
    if value.use & Use.GRADIENT:
        return Category.GRADIENTS, "made in the backward pass, used by the update"
    if value.is_past_differentiation:
        return Category.GRADIENTS, "made only from gradients"
    return None


def collectives(value: Value) -> Explanation:
    """Buffers of cross-device communication that are neither kept for a later pass nor gradients."""
    kind = COLLECTIVES.get(value.opcode)
    if kind is None and not value.is_for_collectives:
        return None
    return Category.COLLECTIVES, f"result of {kind}" if kind else "in memory reserved for collectives"


def forward_temps(value: Value) -> Explanation:
    """Values of the forward pass that die in it, and values outside differentiation (rollouts, metrics)."""
    if value.computed_in not in _FORWARD:
        return None
    if value.computed_in is Phase.FORWARD:
        return Category.FORWARD_TEMPS, "made and used in the forward pass"
    return Category.FORWARD_TEMPS, "made outside differentiation, not used in the backward pass"


def cotangents(value: Value) -> Explanation:
    """Values of the backward pass other than gradients of parameters."""
    if value.computed_in is not Phase.BACKWARD:
        return None
    return Category.COTANGENTS, "made and used in the backward pass"


def update_temps(value: Value) -> Explanation:
    """Values of the optimizer update."""
    if value.phase is not Phase.UPDATE:
        return None
    return Category.UPDATE_TEMPS, "made from gradients and optimizer state or parameters"


RULES: tuple[Rule, ...] = (
    arguments,
    outputs,
    tuple_tables,
    workspace,
    constants,
    gathered_params,
    param_copies,
    recomputed,
    activations,
    gradients,
    collectives,
    forward_temps,
    cotangents,
    update_temps,
)


def attribute(value: Value, rules: tuple[Rule, ...] = RULES) -> Claim:
    """Return the claim of the first rule that explains `value`; `unattributed` if no rule does."""
    for rule in rules:
        explained = rule(value)
        if explained is not None:
            category, evidence = explained
            return Claim(category=category, rule=rule.__name__, evidence=evidence)
    return Claim(category=Category.UNATTRIBUTED, rule="none", evidence="no rule explains it")
