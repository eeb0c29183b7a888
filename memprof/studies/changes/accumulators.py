"""Hold a step's own sums of gradients in bfloat16 between minibatches."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.rewrites import NarrowSums
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import with_rewrite


def narrow_accumulators(step: Step) -> Iterator[Change]:
    """Yield the step with its accumulators in bfloat16, if the rule `narrow_accumulators` proposes it."""
    advice = next((each for each in step.advice if each.rule == "narrow_accumulators"), None)
    if advice is None or step.is_composed:
        return
    applied = with_rewrite(step.spec, NarrowSums())
    if applied is None:
        return
    code, changed = applied
    yield Change.of_advice(advice, changed, code=code, keeps_numbers=False, rewrite=NarrowSums())
