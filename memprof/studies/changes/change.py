"""A change to a step: the code for it, and the step with that code in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from memprof.analysis.records.capture import Target
from memprof.analysis.records.report import Report
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advice import Advice
from memprof.workloads.intents import Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that changes are made to.

    Attributes:
        report: of the step as it is.
        advice: what the rules propose for it.
        with_technique: builds the step with one technique more, by its label; None: the step is a function as it is.
        is_built_in: a model of memprof's, whose code is no user's.
    """

    spec: StepSpec
    target: Target
    report: Report
    advice: tuple[Advice, ...]
    with_technique: Callable[[str], StepSpec] | None = None
    is_built_in: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        rule: the name of the family, or of the rule of advice that proposes it.
        what, evidence, cost: as of a `Proposal`.
        code: to paste; empty: that of the intent.
        spec: the changed step.
        around: in force while that is traced.
        keeps_numbers: whether the step computes the same with it.
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
