"""Donate the arguments that the step returns, so that their new values reuse their memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax

from memprof.analysis.records.rewrites import Donation
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import framework_of, is_array_like
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import has_shardings, jitted_code, name_of_step, step_of_code
from memprof.workloads.intents import Intent


def donations(step: Step) -> Iterator[Change]:
    """Yield the step with its state donated, by its own jit."""
    for advice in step.advice:
        if advice.rule != "donate_state" or step.with_technique is not None:
            continue
        proposal, spec = advice.proposal, step.spec
        code = donating_code(spec, proposal.intent)
        yield Change(
            rule=advice.rule,
            intent=proposal.intent,
            what=proposal.what,
            evidence=proposal.evidence,
            cost=proposal.cost,
            code=code,
            spec=_donating(spec, code, proposal.intent),
            rewrite=Donation(positions=proposal.intent.positions),
        )


def donating_code(spec: StepSpec, intent: Intent) -> str:
    """Return the line that jits the step again, with donation."""
    if has_shardings(spec.fn):
        return f"donate_argnums = {intent.positions}  # for the jax.jit of {name_of_step(spec)}"
    return jitted_code(spec, positions=intent.positions, names=intent.names, donates=True)


def _donating(spec: StepSpec, code: str, intent: Intent) -> StepSpec:
    """Return the spec of the step that the code makes."""
    if has_shardings(spec.fn):
        return replace(spec, fn=jit_adapter.jitted_with_donation(spec.fn, intent.positions))
    changed = step_of_code(spec, code)
    if callable(own(spec.fn, "lower")) or framework_of(spec) == "equinox" or _takes_arrays_alone(spec):
        return replace(changed, donate_argnums=(), static_argnums=())
    return replace(spec, donate_argnums=tuple(sorted({*spec.donate_argnums, *intent.positions})))


def _takes_arrays_alone(spec: StepSpec) -> bool:
    dynamic = [each for number, each in enumerate(spec.args) if number not in spec.static_argnums]
    return all(map(is_array_like, jax.tree.leaves((dynamic, dict(spec.kwargs)))))
