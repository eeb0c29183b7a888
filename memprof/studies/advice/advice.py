"""A piece of advice: what would be done about a peak, and what it would save."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    intent: Intent
    what: str
    evidence: str
    cost: str
    without: Without
    is_packed: bool = False
    live_peak_bytes: int | None = None

    @property
    def how_to(self) -> str:
        """One line of code."""
        return means_to(self.intent).code

    @property
    def technique(self) -> str | None:
        """Label of the technique of memprof's that does it; None where there is none."""
        return means_to(self.intent).technique


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A proposal, with what it would do to this step.

    Attributes:
        rule: the name of the rule that made it.
        saving_bytes: by about how much the footprint would be lower. What XLA would need for something new in exchange,
            and what it would put into another order, is not known before it compiles.
        true_saving_bytes: the same once it was compiled; None where it was not.
        refusal: why it could not be compiled.
    """

    rule: str
    proposal: Proposal
    saving_bytes: int
    true_saving_bytes: int | None = None
    refusal: str = ""
