"""A piece of advice: a change that lowers the peak, and its saving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from memprof.studies.advice.what_if import Without
from memprof.studies.pasted_code import pasteable
from memprof.workloads.intents import Aim, Intent, means_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change that a rule proposes.

    Attributes:
        intent: the change; `workloads` has its code.
        what: the change in one sentence, without a full stop.
        evidence: the facts of this program that support it.
        cost: the price of the change.
        without: the buffers that it shrinks or frees earlier.
        is_packed: whether it removes fragmentation.
        live_peak_bytes: live bytes at the peak after the change; None means that the replayed timeline decides.
        at_most_bytes: an upper bound of the saving, if it can be more than `without` removes.
        code: code to paste, if it depends on more than the report contains; if empty, the code of the intent.
    """

    intent: Intent
    what: str
    evidence: str
    cost: str
    without: Without
    is_packed: bool = False
    live_peak_bytes: int | None = None
    at_most_bytes: int = 0
    code: str = ""

    @property
    def how_to(self) -> str:
        """The code, or an instruction in words if no code runs in every step."""
        return self.code_to_paste or means_to(self.intent).words

    @property
    def code_to_paste(self) -> str:
        """Code that runs in the user's step, with a place for its imports; empty if there is none."""
        return pasteable(self.code or means_to(self.intent).code)

    @property
    def technique(self) -> str | None:
        """The label of memprof's technique for this change; None if memprof has no such technique."""
        return None if self.code else means_to(self.intent).technique


class Meaning(Enum):
    """Whether a changed step computes the same as before."""

    EQUAL = "equal"  # bit by bit, on a small instance
    CLOSE = "close"  # within the tolerance of `same_meaning.py`
    SAME_OPERATIONS = "same_operations"  # on the same values, some perhaps twice: proved from traces of both steps
    UNPROVED = "unproved"  # no proof, and no small instance could be run
    DIFFERENT = "different"  # other numbers, as the advice says


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A step that was compiled with a change in it.

    Attributes:
        footprint_bytes: footprint of the plan without memory pressure.
        saving_bytes: difference to the footprint of the unchanged step.
        recomputed_flops: additional FLOPs of a step.
        seconds: increase of the lower bound on the time of a step; None if it is unknown.
    """

    footprint_bytes: int
    saving_bytes: int
    recomputed_flops: int
    seconds: float | None
    meaning: Meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A proposal and its effect on this step.

    Attributes:
        rule: name of the rule, or of the family of changes, that made the proposal.
        bound_bytes: upper bound of the saving, by the buffers that would change.
        compiled: the changed step; None if it was not compiled.
        refusal: the reason why it could not be compiled.
    """

    rule: str
    proposal: Proposal
    bound_bytes: int
    compiled: Compiled | None = None
    refusal: str = ""

    @property
    def is_compiled(self) -> bool:
        """Whether the saving is that of a compile; otherwise it is an upper bound."""
        return self.compiled is not None

    @property
    def saving_bytes(self) -> int:
        """The saving, or its upper bound."""
        return self.bound_bytes if self.compiled is None else self.compiled.saving_bytes


def ranked(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Sort advice: compiled savings (free ones, then by cost per byte), then upper bounds (donation, then by size)."""
    return tuple(sorted(advice, key=_rank))


def _rank(advice: Advice) -> tuple[bool, bool, float, int]:
    compiled = advice.compiled
    if compiled is None:
        return (True, advice.proposal.intent.aim is not Aim.DONATE, 0.0, -advice.bound_bytes)
    aim = advice.proposal.intent.aim
    takes_time = aim.recomputes or compiled.recomputed_flops > 0 or aim is Aim.ACCUMULATE_GRADIENTS  # smaller products
    is_free = not takes_time and compiled.meaning is not Meaning.DIFFERENT
    cost = max(compiled.recomputed_flops, 0) / max(compiled.saving_bytes, 1)
    return (False, not is_free, cost, -compiled.saving_bytes)
