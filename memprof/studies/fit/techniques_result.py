"""What a search for the cheapest techniques that fit found, and everything that was tried for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memprof.studies.fit.combinations import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTechniques:
    """One combination that was compiled.

    Attributes:
        techniques: joined with `+`; empty for none.
        cost: what it costs; its recomputed operations are those of the compiled step.
        footprint_bytes: as the compiler has it; None where it failed, and then `problem` says why.
        host_bytes: in host memory that the step holds, beside the footprint.
        seconds: what lowering and compiling took.
        step_seconds: the median of the steps that were run; None where it was not run.
    """

    techniques: str
    cost: Cost
    footprint_bytes: int | None
    host_bytes: int = 0
    seconds: float = 0.0
    step_seconds: float | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return self.techniques or "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """How a user does one technique in code of their own: what to do in a sentence, and the line that does it."""

    technique: str
    sentence: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniquesResult:
    """The answer and what it rests on.

    Attributes:
        subject: what must fit; `settings` are the preset and the fields that were asked for, in words.
        ranked: what was compiled and fits, the best first; empty where nothing does.
        others: what was compiled and does not fit, or failed, in the order in which it was made.
        num_combinations: how many there are; `num_inferred` of them are cheaper than the answer and were not compiled,
            since one that should hold less does not fit.
        left_out: techniques that were not considered, with the reason, by label.
        contradictions: sentences on techniques that hold more here than what they were expected to hold less than.
        changes: the code changes of the answer.
        command: the command line that profiles the answer; empty where there is none.
    """

    subject: str
    settings: str
    target: str
    memory_bytes: int
    reserve_bytes: int
    reserve_reason: str
    ranked: tuple[TriedTechniques, ...]
    others: tuple[TriedTechniques, ...]
    num_combinations: int
    num_inferred: int
    left_out: Mapping[str, str]
    contradictions: tuple[str, ...]
    changes: tuple[CodeChange, ...]
    command: str

    @property
    def answer(self) -> TriedTechniques | None:
        return self.ranked[0] if self.ranked else None

    @property
    def num_compiled(self) -> int:
        return len(self.ranked) + len(self.others)

    @property
    def budget_bytes(self) -> int:
        return self.memory_bytes - self.reserve_bytes

    @property
    def smallest(self) -> TriedTechniques:
        """The one that takes the least memory of those that were compiled."""
        compiled = [each for each in (*self.ranked, *self.others) if each.footprint_bytes is not None]
        return min(compiled, key=lambda each: each.footprint_bytes or 0)
