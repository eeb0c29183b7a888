"""The rules of attribution: from what is known of a value to its category.

`RULES` is asked from first to last, and the first rule that explains a value decides. Each rule is a function that
returns the category and the reason in one sentence, or None to pass the value on; its name stands in the reports. The
order is part of the meaning: what a later rule sees, all earlier ones have declined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memprof.analysis.attribution.dataflow import ROLES, Origin, Use
from memprof.analysis.attribution.values import Value
from memprof.analysis.hlo.program import COLLECTIVES
from memprof.analysis.hlo.rematerialization import is_rematerialized
from memprof.analysis.records.categories import Category, Phase

Explanation = tuple[Category, str] | None
Rule = Callable[[Value], Explanation]

# The phases of a forward pass, whether it is differentiated or not.
_FORWARD = {Phase.FORWARD: "in the forward pass", Phase.UNDIFFERENTIATED: "outside differentiation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A rule's word on a value: its category, and why."""

    category: Category
    rule: str
    evidence: str


def arguments(value: Value) -> Explanation:
    """Memory of an argument belongs to the category of the argument's role.

    XLA may write results into the memory of a donated argument, or values on their way there; it is the caller's memory
    all the same, and is counted once, here.
    """
    if value.argument is None:
        return None
    donated = ", donated" if value.argument.donated else ""
    return Category(value.argument.role.value), f"argument {value.argument.path}{donated}"


def outputs(value: Value) -> Explanation:
    """Memory of a result that aliases no argument: the cost of not donating.

    The table of pointers to the results belongs to it.
    """
    if not value.is_output:
        return None
    return Category.OUTPUTS, "table of pointers to the results" if value.is_tuple_table else "result of the step"


def tuple_tables(value: Value) -> Explanation:
    """Tables of pointers to the elements of a tuple: scratch of the runtime, a few bytes each."""
    return (Category.WORKSPACE, "table of pointers to the elements of a tuple") if value.is_tuple_table else None


def workspace(value: Value) -> Explanation:
    """Scratch memory of library calls (cuBLAS, cuDNN, sort, ...).

    XLA gives a library call its scratch as a further element of the call's result that nothing reads: an array of
    bytes.
    """
    is_scratch = value.opcode == "custom-call" and value.element not in ((), (0,)) and value.dtype in ("u8", "s8")
    if not is_scratch or value.use:
        return None
    return Category.WORKSPACE, f"scratch of {value.custom_call_target}"


def constants(value: Value) -> Explanation:
    """Constants of the program, and values that depend on no argument at all (masks, position numbers, zeros)."""
    if value.is_constant:
        return Category.CONSTANTS, "constant of the program"
    return None if value.origin & ROLES else (Category.CONSTANTS, "depends on no argument")


def param_copies(value: Value) -> Explanation:
    """Values that depend on parameters alone, in whatever phase they are made.

    With float32 parameters and bfloat16 compute these are the bfloat16 casts that the backward pass keeps; also
    transposes for a layout.
    """
    if value.origin & ROLES != Origin.PARAMS:
        return None
    return Category.PARAM_COPIES, "depends on parameters alone"


def gathered_params(value: Value) -> Explanation:
    """Parameters that lie on several devices, gathered for an operation that needs more of them than is here."""
    if value.origin & ROLES != Origin.PARAMS or not value.origin & Origin.OTHER_DEVICES:
        return None
    return Category.GATHERED_PARAMS, "depends on parameters alone, of which other devices have sent a part"


def recomputed(value: Value) -> Explanation:
    """Values of the forward pass that are computed again in the backward pass.

    Either the program asks for it (`jax.checkpoint` names such operations), or XLA does it on its own to stay within
    the device's memory.
    """
    if value.computed_in is Phase.RECOMPUTE:
        return Category.RECOMPUTED, "made by jax.checkpoint in the backward pass"
    if is_rematerialized(value.name):
        return Category.RECOMPUTED, "rematerialised by XLA to save memory"
    return None


def activations(value: Value) -> Explanation:
    """Values that the backward pass uses, of the forward pass or made outside differentiation (shuffled data).

    A value of which a copy in another layout is made at once, and then dies, is none: its copy is.
    """
    is_used = value.use & (Use.BACKWARD | Use.RECOMPUTE)
    if value.dies_in_forward or value.computed_in not in _FORWARD or not is_used:
        return None
    return Category.ACTIVATIONS, f"made {_FORWARD[value.computed_in]}, used in the backward pass"


def gradients(value: Value) -> Explanation:
    """Gradients of parameters: values of the backward pass that the update uses.

    Partial sums of a gradient belong to it, and so do accumulators over minibatches, clipped and averaged gradients:
    what works on gradients after differentiation, as long as neither parameters nor optimizer state come in.
    """
    if value.computed_in is not Phase.BACKWARD:
        return None
    if value.use & Use.GRADIENT:
        return Category.GRADIENTS, "made in the backward pass, used by the update"
    if value.is_past_differentiation:
        return Category.GRADIENTS, "made from gradients alone"
    return None


def collectives(value: Value) -> Explanation:
    """Buffers of cross-device communication that are nothing else: neither kept for a later pass, nor a gradient."""
    kind = COLLECTIVES.get(value.opcode)
    if kind is None and not value.is_for_collectives:
        return None
    return Category.COLLECTIVES, f"result of {kind}" if kind else "in memory that is taken for collectives"


def forward_temps(value: Value) -> Explanation:
    """Values of the forward pass that die in it, and those outside differentiation (rollouts, metrics)."""
    if value.computed_in not in _FORWARD:
        return None
    if value.computed_in is Phase.FORWARD:
        return Category.FORWARD_TEMPS, "made and used in the forward pass"
    return Category.FORWARD_TEMPS, "made outside differentiation, not used in the backward pass"


def cotangents(value: Value) -> Explanation:
    """Values of the backward pass that are no gradients of parameters."""
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
    """The claim of the first rule that explains `value`; `unattributed` where none does."""
    for rule in rules:
        explained = rule(value)
        if explained is not None:
            category, evidence = explained
            return Claim(category=category, rule=rule.__name__, evidence=evidence)
    return Claim(category=Category.UNATTRIBUTED, rule="none", evidence="no rule explains it")
