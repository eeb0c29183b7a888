"""A change to a step: the code for it, and the step with that code in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from memprof.analysis.records.capture import Target
from memprof.analysis.records.report import Report
from memprof.analysis.records.rewrites import Rewrite
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advice import Advice
from memprof.workloads.intents import Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step to be changed.

    Attributes:
        report: report of the unchanged step.
        advice: advice of the rules for it.
        with_technique: builds the step with one more technique, given its label; None if the step is a finished
            function.
        is_built_in: whether it is one of memprof's models, without user code.
    """

    spec: StepSpec
    target: Target
    report: Report
    advice: tuple[Advice, ...]
    with_technique: Callable[[str], StepSpec] | None = None
    is_built_in: bool = False

    @property
    def is_composed(self) -> bool:
        """Whether memprof composes the step, so that no user code contains all of it."""
        return self.is_built_in or self.with_technique is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        rule: name of the family, or of the advice rule that proposes it.
        what, evidence, cost: as in a `Proposal`.
        code: code to paste; if empty, the code of the intent.
        spec: the changed step.
        around: context in which the changed step is traced.
        on_cpu: the changed step for the CPU, if it differs.
        rewrite: argument of `memprof.apply` that makes the change; None for other changes.
        keeps_numbers: whether the changed step computes the same numbers.
        is_proved: whether the search for the change proves `keeps_numbers`, up to rounding.
    """

    rule: str
    intent: Intent
    what: str
    evidence: str
    cost: str
    spec: StepSpec
    code: str = ""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    keeps_numbers: bool = True
    is_proved: bool = False
    on_cpu: StepSpec | None = None
    rewrite: Rewrite | None = None

    @classmethod
    def of_advice(cls, advice: Advice, spec: StepSpec, **more: Any) -> Self:
        """Make the change that a piece of advice proposes.

        Args:
            more: other fields of the change.
        """
        proposal = advice.proposal
        return cls(
            rule=advice.rule,
            intent=proposal.intent,
            what=proposal.what,
            evidence=proposal.evidence,
            cost=proposal.cost,
            spec=spec,
            **more,
        )
