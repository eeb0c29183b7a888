"""A piece of advice, and what a rule is that gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memprof.analysis.report import Report
from memprof.studies.advice.what_if import Without


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a rule would do about the peak.

    Attributes:
        what: what to do, in one sentence without its full stop.
        evidence: what in this program says so.
        cost: what it takes in exchange.
        how_to: one line of code.
        without: which buffers it makes smaller, or holds for a shorter time.
        is_packed: whether it is to do away with fragmentation.
        technique: label of the technique of memprof's that does it; None where there is none.
    """

    what: str
    evidence: str
    cost: str
    how_to: str
    without: Without
    is_packed: bool = False
    technique: str | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRule:
    """One thing that wastes memory.

    Attributes:
        name: as reports and JSON show it.
        propose: what it would do about the peak of a report; nothing where the program does not have it.
    """

    name: str
    propose: Callable[[Report], tuple[Proposal, ...]]
