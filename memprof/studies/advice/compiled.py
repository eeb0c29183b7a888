"""Advice with compiled savings: memprof changes a step, compiles it, and reports its true footprint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Target
from memprof.analysis.records.pool import PoolSettings
from memprof.analysis.records.report import Report
from memprof.sources.jax.compile import capture_of
from memprof.sources.jax.processes.launch import num_at_a_time
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.user_traceback import first_line
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.studies.advice.advice import Advice, Compiled, Meaning, Proposal
from memprof.studies.advice.advise import advise, upper_bounds
from memprof.studies.advice.known import are_known, keep_changes, known_advice
from memprof.studies.changes.accumulators import narrow_accumulators
from memprof.studies.changes.attention import attention_kernels
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.chunks import in_chunks
from memprof.studies.changes.compiling import Outcome, compile_changes
from memprof.studies.changes.donation import donations
from memprof.studies.changes.layered_state import layered_states
from memprof.studies.changes.minibatches import in_parts
from memprof.studies.changes.optimizer_state import narrow_optimizer_states
from memprof.studies.changes.read_rows import only_read_rows
from memprof.studies.changes.recomputation import recomputations
from memprof.studies.changes.same_meaning import MeaningCheck
from memprof.studies.changes.scans_in_groups import scans_in_groups
from memprof.studies.changes.shardings import divided_arguments
from memprof.studies.changes.techniques import techniques

# If the first change is possible, the second is not compiled: it saves no more, and its steps are slower.
_PREFERENCES = (("flash_attention", "chunked_attention"),)
# In the order of their compiles: changes that cost little and save much come first.
FAMILIES: tuple[Callable[[Step], Iterator[Change]], ...] = (
    donations,
    only_read_rows,
    attention_kernels,
    in_chunks,
    in_parts,
    recomputations,
    scans_in_groups,
    layered_states,
    narrow_accumulators,
    divided_arguments,
    narrow_optimizer_states,
    techniques,  # last: they import the user's code again
)


def advise_step(
    spec: StepSpec,
    target: Target,
    *,
    progress: Callable[[str], None],
    rows: Callable[[Sequence[str]], AbstractContextManager[Callable[[str, str], None]]],
    settings: CompileSettings = TO_THE_PLAN,
    pool: PoolSettings | None = None,
    with_technique: Callable[[str], StepSpec] | None = None,
    is_built_in: bool = False,
    warn: Callable[[str], None] = lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=3),
    interrupted: Callable[[Report, tuple[Advice, ...]], None] = lambda report, advice: None,
) -> tuple[Report, tuple[Advice, ...]]:
    """Compile the unchanged step, then the step with each change that memprof can make to it.

    The outcomes are stored, so the same program is not advised twice, unless a change could not be compiled: a child
    process may have been killed.

    Args:
        progress: called with each stage of the first compile as it begins.
        rows: opens a display for a growing list of labels of changes, and returns a function to call with a label and
            the stage of its compile.
        pool: the settings of JAX's allocator for the verdict; None means those of the capture.
        with_technique, is_built_in: see `Step`.
        warn: called with a sentence for each change that could not be tried.
        interrupted: called with the advice so far, which is stored, if an interruption ends the compiles.

    Raises:
        MemprofError, WorkloadError: see `capture_of`.
        Exception: any exception that the step raises while it is traced.
    """
    settings = replace(settings, cluster=None)
    fresh = capture_of(spec, target, progress=progress, settings=settings)
    progress("analysing")
    report = analyze(fresh.capture, fresh.decoded, pool=pool)
    del fresh  # the decoded program takes much memory
    if settings.use_cache and are_known(report):
        return report, known_advice(report)
    progress("looking for changes")
    step = Step(
        spec=spec,
        target=target,
        report=report,
        advice=upper_bounds(report),
        with_technique=with_technique,
        is_built_in=is_built_in,
    )
    labels: list[str] = []
    failures: dict[str, str] = {}
    with rows(labels) as row:
        changes = _changes(step, labels, row, failures)
        num_jobs = num_at_a_time(settings, target)
        outcomes = compile_changes(changes, target, num_jobs=num_jobs, settings=settings, progress=row)
        compiled: list[Advice] = []
        try:
            for each in _compiled_advice(step, outcomes, failures):
                compiled.append(each)
        except BaseException:
            if compiled:
                keep_changes(report, compiled, is_complete=False)
                interrupted(report, advise(report, compiled))
            raise
    keep_changes(report, compiled, is_complete=not failures)
    advice = advise(report, compiled)
    found = tuple(each if each.is_compiled else replace(each, refusal=failures.get(each.rule, "")) for each in advice)
    advised = {each.rule for each in found if not each.is_compiled}  # an estimate says itself why it is not compiled
    for name in (each for each in failures if each not in advised):
        warn(f"memprof could not try {name}: {failures[name]}")
    return report, found


def _changes(
    step: Step, labels: list[str], row: Callable[[str, str], None], failures: dict[str, str]
) -> Iterator[Change]:
    """Yield the changes, and append the label of each. The first one compiles during the search for the others.

    A family whose search fails is left out, because the other changes are useful without it.
    """
    for family in FAMILIES:
        try:
            for change in family(step):
                if not any(change.rule == worse and better in labels for better, worse in _PREFERENCES):
                    labels.append(change.rule)
                    yield change
        except Exception as error:  # each family traces the user's code with changes in it
            labels.append(family.__name__)
            row(family.__name__, "failed")
            failures[family.__name__] = f"{type(error).__name__}: {first_line(error)}"


def _compiled_advice(step: Step, outcomes: Iterable[Outcome], failures: dict[str, str]) -> Iterator[Advice]:
    check = MeaningCheck(step)
    for outcome in outcomes:
        change = outcome.change
        if outcome.fresh is None:
            failures[change.rule] = outcome.refusal
        else:
            report = analyze(outcome.fresh.capture, outcome.fresh.decoded)
            yield _advice(step.report, change, report, check.of(change))


def _advice(before: Report, change: Change, after: Report, meaning: Meaning) -> Advice:
    before, after = before.unpressed, after.unpressed
    saving_bytes = before.footprint_bytes - after.footprint_bytes
    bounds = [each.roofline.at_least_seconds for each in (before, after) if each.roofline is not None]
    proposal = Proposal(
        intent=change.intent,
        what=change.what,
        evidence=change.evidence,
        cost=change.cost,
        code=change.code,
        without=lambda buffer: None,
    )
    compiled = Compiled(
        footprint_bytes=after.footprint_bytes,
        saving_bytes=saving_bytes,
        recomputed_flops=after.recomputed_flops - before.recomputed_flops,
        seconds=bounds[1] - bounds[0] if len(bounds) == 2 else None,
        meaning=meaning,
    )
    return Advice(rule=change.rule, proposal=proposal, bound_bytes=max(saving_bytes, 0), compiled=compiled)
