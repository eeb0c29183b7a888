"""memprof's techniques as changes: compiler options for any step, and the other techniques for a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.workloads.composition import apply_techniques, parse_techniques
from memprof.workloads.train_config import TrainConfig


def techniques(step: Step) -> Iterator[Change]:
    """Yield the step with each technique that advice names; each technique appears once."""
    seen: set[str] = set()
    for advice in step.advice:
        proposal = advice.proposal
        label, is_covered = proposal.technique, proposal.intent.aim.recomputes and not step.is_built_in
        if label is None or label in seen or is_covered:
            continue
        seen.add(label)
        spec = _with_technique(step, label)
        if spec is not None:
            yield Change.of_advice(advice, spec, keeps_numbers=not proposal.intent.aim.changes_numbers)


def _with_technique(step: Step, label: str) -> StepSpec | None:
    """Return the step with a technique; None if it does not apply."""
    applied = parse_techniques(label)
    if all(set(each.technique.sets) == {"compiler_options"} for each in applied):
        options = apply_techniques(TrainConfig(), applied).compiler_option_values()
        return replace(step.spec, compiler_options={**step.spec.compiler_options, **options})
    if step.with_technique is None:
        return None
    try:
        return step.with_technique(label)
    except MemprofError:  # it does not apply to this loss, or is already applied
        return None
