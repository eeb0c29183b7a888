"""The cheapest techniques with which an unchanged workload fits: the library behind `memprof fit --techniques auto`.

The plain step is compiled first. If it does not fit, `ladder.py` finds the techniques that apply, tracing counts the
recomputation of each, and `studies.fit.cheapest` decides which combinations to compile, a few at a time, each in a
child process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.report import Report
from memprof.errors import InternalError
from memprof.sources.jax.processes.launch import CompileResult, compile_all, recomputed_in_child
from memprof.sources.jax.processes.task import CountingTask, Task
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.studies.fit.budget import Budget, MemoryRequest
from memprof.studies.fit.cheapest import CheapestSearch, Combination, Cost, combine
from memprof.studies.fit.ladder import Ladder, find_ladder
from memprof.studies.fit.results import CodeChange, TechniquesResult, TriedTechniques
from memprof.studies.pasted_code import pasteable
from memprof.studies.subject import Subject, request_digest, run_command
from memprof.workloads.composition import parse_techniques
from memprof.workloads.intents import with_imports

_NUM_MEASURED = 3  # number of the cheapest fitting combinations that are run if steps are requested


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniquesRequest:
    """The subject that must fit, the memory, the steps to run of the cheapest (0: none), and compile settings."""

    subject: Subject
    memory: MemoryRequest
    num_steps: int = 0
    settings: CompileSettings = TO_THE_PLAN

    def check(self) -> None:
        """Raise `MemprofError` for mistakes that can be found before any compile."""
        self.memory.check()
        self.subject.plan()

    def task(self, techniques: str, *, num_steps: int = 0) -> Task:
        """Return the compile with techniques; its label is the techniques."""
        return self.subject.task(
            techniques, target=self.memory.target, label=techniques, num_steps=num_steps, settings=self.settings
        )

    def is_of_it(self, capture: Capture) -> bool:
        """Return whether this search would compile the same capture."""
        techniques = "+".join(capture.techniques)
        return self.subject.applies(techniques) and capture.request == request_digest(self.task(techniques))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How to run compiles.

    Attributes:
        num_jobs: number of compiles at a time.
        progress: called from several threads with the current activity.
        keep: called with each capture as soon as it exists, so that no finished one is lost.
    """

    num_jobs: int
    progress: Callable[[str], None]
    keep: Callable[[Capture], None]


def fit_techniques(request: TechniquesRequest, work: Work) -> TechniquesResult:
    """Find the cheapest techniques that fit, with few compiles.

    Returns:
        All trials; without an answer if no combination fits.

    Raises:
        NothingFitsError: the parameters alone are too much.
        MemprofError: the request has a mistake, or no technique applies.
        WorkloadError: the step without techniques cannot be compiled.
    """
    request.check()
    runs = _Runs(request, work)
    plain_report = runs.compile_plain()
    budget = request.memory.budget(plain_report.target, plain_report.pool)
    budget.check_params_fit(plain_report)
    plain = _of_report(plain_report, Cost(), budget)
    ladder = Ladder(families=(), left_out={})
    if not plain.fits(budget.size_bytes):
        ladder = find_ladder(request.subject, plain_report, runs.count_recomputed)
    combinations = [each for each in combine(ladder.families) if request.subject.applies(each.label)]
    search = CheapestSearch(combinations, budget_bytes=budget.size_bytes)
    tried = {"": plain}
    search.record(next(each for each in combinations if not each.label), plain.needed_bytes)
    while batch := _next_batch(search, work.num_jobs):
        note = f"{len(tried)} compiled, {search.num_open} of {len(combinations)} combinations left"
        for combination, done in runs.compile(batch, budget, note=note):
            tried[combination.label] = done
            search.record(combination, done.needed_bytes)
    fitting = [each for each in tried.values() if each.fits(budget.size_bytes)]
    ranked = runs.measure(cheapest_first(fitting))
    answer = ranked[0] if ranked else None
    return TechniquesResult(
        subject=request.subject.label,
        settings=_settings(request.subject, plain_report),
        target=plain_report.target.name,
        memory_bytes=budget.memory_bytes,
        budget_bytes=budget.size_bytes,
        ranked=tuple(ranked),
        others=tuple(each for each in tried.values() if each not in fitting),
        num_combinations=len(combinations),
        num_inferred=len(search.inferred()),
        left_out=ladder.left_out,
        contradictions=_contradictions(search),
        changes=_changes(answer.techniques if answer else ()),
        command="" if answer is None else run_command(request.subject, request.memory.target, answer.label),
    )


class _Runs:
    """The compiles and runs of one search."""

    def __init__(self, request: TechniquesRequest, work: Work) -> None:
        self._request = request
        self._work = work

    def compile_plain(self) -> Report:
        """Compile the step without techniques, the starting point of the search."""
        (result,) = self._compile([""], note="without techniques")
        if result.fresh is None:
            assert result.error is not None
            raise result.error
        return analyze(result.fresh.capture, result.fresh.decoded, with_order=False)

    def compile(
        self, batch: Sequence[Combination], budget: Budget, *, note: str
    ) -> list[tuple[Combination, TriedTechniques]]:
        """Compile combinations at the same time."""
        by_label = {each.label: each for each in batch}
        done = []
        for result in self._compile(list(by_label), note=note):
            combination = by_label[result.task.label]
            done.append((combination, _outcome(result, combination, budget)))
        return done

    def measure(self, ranked: Sequence[TriedTechniques]) -> list[TriedTechniques]:
        """Run the cheapest combinations that fit, if steps are requested, and put the fastest first."""
        num_steps = self._request.num_steps
        if not num_steps:
            return list(ranked)
        seconds: dict[str, float] = {}
        labels = [each.label for each in ranked[:_NUM_MEASURED]]
        for result in self._compile(labels, note="running", num_steps=num_steps):
            if result.fresh is not None and result.fresh.capture.measured is not None:
                median = result.fresh.capture.measured.median_seconds
                seconds |= {result.task.label: median} if median is not None else {}
        timed = [replace(each, step_seconds=seconds.get(each.label)) for each in ranked]
        never = float("inf")
        return sorted(timed, key=lambda each: (each.cost.changes_training, each.step_seconds or never, each.cost))

    def count_recomputed(self, labels: Sequence[str]) -> Sequence[int | str]:
        """Return the recomputed FLOPs of single techniques."""
        task = CountingTask(
            recipes=tuple(map(self._request.subject.plan, labels)),
            target=self._request.memory.target,
            settings=self._request.settings,
        )
        return recomputed_in_child(
            task, progress=lambda stage: self._work.progress(f"counting recomputed FLOPs: {stage}")
        )

    def _compile(self, labels: Sequence[str], *, note: str, num_steps: int = 0) -> Iterator[CompileResult]:
        work = self._work
        tasks = [self._request.task(label, num_steps=num_steps) for label in labels]
        # Timed steps need the device for themselves.
        for result in compile_all(
            tasks,
            num_jobs=1 if num_steps else work.num_jobs,
            progress=lambda label, stage: work.progress(f"{note}; {label or 'baseline'}: {stage}"),
        ):
            if result.fresh is not None:
                work.keep(replace(result.fresh.capture, request=request_digest(result.task)))
            yield result


def cheapest_first(fitting: Sequence[TriedTechniques]) -> list[TriedTechniques]:
    """Sort by the roofline bound of a step if all combinations have one, otherwise by cost."""
    by_cost = sorted(fitting, key=lambda each: (each.cost, each.footprint_bytes))
    if any(each.at_least_seconds is None for each in fitting):
        return by_cost
    return sorted(
        by_cost,
        key=lambda each: (each.cost.changes_training, each.cost.moves_to_host, each.at_least_seconds),
    )


def _next_batch(search: CheapestSearch, size: int) -> list[Combination]:
    batch: list[Combination] = []
    while len(batch) < size and (combination := search.next(under_way=batch)) is not None:
        batch.append(combination)
    return batch


def _outcome(result: CompileResult, combination: Combination, budget: Budget) -> TriedTechniques:
    """Return the outcome of a compile. A failure, or a program that memprof does not understand, becomes a problem."""
    error = result.error
    if result.fresh is not None:
        try:
            report = analyze(result.fresh.capture, result.fresh.decoded, with_order=False)
            return _of_report(report, combination.cost, budget)
        except InternalError as defect:
            error = defect
    return TriedTechniques(
        techniques=combination.techniques, cost=combination.cost, footprint_bytes=None, problem=str(error)
    )


def _of_report(report: Report, cost: Cost, budget: Budget) -> TriedTechniques:
    return TriedTechniques(
        techniques=report.techniques,
        cost=replace(cost, recomputed_flops=report.recomputed_flops),
        footprint_bytes=report.unpressed.footprint_bytes,
        host_bytes=report.program.host_bytes,
        at_least_seconds=report.roofline.at_least_seconds if report.roofline else None,
        seconds=report.timings.lower_seconds + report.timings.compile_seconds,
        verdict=budget.verdict(report),
    )


def _settings(subject: Subject, plain: Report) -> str:
    """Return the request in words: the preset, the batch, and all other settings."""
    overrides = list(subject.overrides)
    batch_size = plain.config.get("batch_size")
    if batch_size is not None and not subject.sets("batch_size"):
        overrides.insert(0, f"batch_size={batch_size}")
    return ", ".join([*([subject.preset] if subject.preset else []), *overrides])


def _contradictions(search: CheapestSearch) -> tuple[str, ...]:
    return tuple(
        f"{one.label} holds more than {other.label or 'the baseline'}, though it was expected to hold less"
        for one, other in search.contradictions()
    )


def _changes(techniques: Sequence[str]) -> tuple[CodeChange, ...]:
    return tuple(
        CodeChange(technique=each.label, sentence=each.instruction, code=pasteable(with_imports(each.code)))
        for each in parse_techniques(*techniques)
        if each.instruction
    )
