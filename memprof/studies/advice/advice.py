"""A piece of advice: what would be done about a peak, and what it would save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from memprof.studies.advice.what_if import Without
from memprof.workloads.intents import Intent, means_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a rule would do about the peak.

    Attributes:
        intent: what to do; `workloads` knows how.
        what: the same in one sentence without its full stop.
        evidence: what in this program says so.
        cost: what it takes in exchange.
        without: which buffers it makes smaller, or holds for a shorter time.
        is_packed: whether it is to do away with fragmentation.
        live_peak_bytes: what is live at the peak after it, where that is known; None: the timeline tells, played again.
        at_most_bytes: the most that it saves, if that can be more than what `without` takes away.
        code: to paste, where more is known of the step than its report says; empty: that of the intent.
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
        """The code, or what to do in words where no code runs in any step."""
        return self.code_to_paste or means_to(self.intent).words

    @property
    def code_to_paste(self) -> str:
        """Code that runs in the user's step; empty if there is none."""
        return self.code or means_to(self.intent).code

    @property
    def technique(self) -> str | None:
        """Label of the technique of memprof's that does it; None where there is none."""
        return None if self.code else means_to(self.intent).technique


class Meaning(Enum):
    """Whether a changed step computes the same as before."""

    EQUAL = "equal"  # bit by bit, on a small instance
    CLOSE = "close"  # within the tolerance of `same_meaning.py`
    UNPROVED = "unproved"  # no small instance could be run
    DIFFERENT = "different"  # other numbers, as the advice says


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A step that was compiled with a change in it.

    Attributes:
        footprint_bytes: without what XLA recomputes under memory pressure.
        saving_bytes: by how much that is lower.
        recomputed_flops: floating-point operations that a step computes more than without the change.
        seconds: by how much the bound on its time is higher; None: unknown.
    """

    footprint_bytes: int
    saving_bytes: int
    recomputed_flops: int
    seconds: float | None
    meaning: Meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A proposal, with what it does to this step.

    Attributes:
        rule: the name of the rule or of the family of changes that made it.
        bound_bytes: the most that it could save, by the buffers that it would change.
        compiled: the step with the change in it; None if it was not compiled.
        refusal: why it could not be compiled.
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
        """By how much the footprint is lower, or at most would be."""
        return self.bound_bytes if self.compiled is None else self.compiled.saving_bytes


def ranked(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Compiled savings first, free ones, then by their cost for each byte; upper bounds after them, in their order."""
    return tuple(sorted(advice, key=_rank))


def _rank(advice: Advice) -> tuple[bool, bool, float, int]:
    compiled = advice.compiled
    if compiled is None:
        return (True, True, 0.0, 0)
    repeats = advice.proposal.intent.aim.recomputes or compiled.recomputed_flops > 0
    is_free = not repeats and compiled.meaning is not Meaning.DIFFERENT
    cost = max(compiled.recomputed_flops, 0) / max(compiled.saving_bytes, 1)
    return (False, not is_free, cost, -compiled.saving_bytes)
