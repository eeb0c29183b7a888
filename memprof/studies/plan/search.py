"""Find checkpoints for a budget: predict the footprints of candidates, compile the fastest that fits, and repeat.

The unchanged step is compiled first. If it fits, the plan changes nothing. Otherwise at most four compiles follow: one
that keeps no results, then candidates. Candidates are choices of several sizes and JAX's built-in policies, with
checkpoints around all blocks or all but the last ones. If a step does not fit even when its blocks keep nothing, these
go into groups. Each candidate is traced, and earlier compiles correct the estimate of its footprint. Only a
compile shows the footprint, so the plan is the best compiled step within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from memprof.analysis.records.capture import Target
from memprof.analysis.records.checkpoints import Checkpoints
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advise import upper_bounds
from memprof.studies.changes.change import Step
from memprof.studies.changes.checkpoint_places import CLEARLY
from memprof.studies.plan.allowed import Allowed
from memprof.studies.plan.candidates import Candidate, best_within, built_in_policies, keeps_results
from memprof.studies.plan.choice import Choice, choice_of, notable_repeats
from memprof.studies.plan.mixtures import Mixture, mixtures
from memprof.studies.plan.next_compile import DOUBT, MARGIN, NextCompile
from memprof.studies.plan.plan import AS_IT_IS, CHOSEN, NOTHING_KEPT, CheckpointPlan, PlannedChange, PlanPoint
from memprof.studies.plan.steps import ChangedStep, Compiler, changed_step, in_best_place
from memprof.studies.plan.times import StepTime

_MAX_COMPILES = 4  # after the first
_CANDIDATE_SHARES = (0.05, 0.12, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)  # of all that could be kept: the sizes of candidates
_CURVE_SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)  # of all that could be kept: choices of a curve


def plan_step(
    spec: StepSpec,
    target: Target,
    *,
    budget_bytes: int | None,
    with_curve: bool = False,
    allowed: Collection[Allowed] = (),
    offload: bool = False,
    progress: Callable[[str], None],
    interrupted: Callable[[CheckpointPlan], None] = lambda plan: None,
) -> CheckpointPlan:
    """Find the results to keep for the backward pass within a memory budget.

    Args:
        budget_bytes: limit of the footprint; None means JAX's pool on the target.
        allowed: changes to try before checkpoints; each is compiled, and kept if it lowers the footprint.
        with_curve: whether to compile choices for further budgets, and JAX's built-in policies.
        offload: whether results may be offloaded to host memory. The layers must be in a scan.
        interrupted: called with the plan so far, if an interruption or an error ends the search.

    Raises:
        MemprofError: the target has no fixed amount of memory, or nothing can be offloaded.
        WorkloadError: the step cannot be compiled.
        Exception: any error of the step while it is traced.
    """
    compiler = Compiler(target=target, progress=progress, host_bandwidth=_host_bandwidth(target) if offload else None)
    report = compiler.report(spec, AS_IT_IS)
    search = _Search(compiler, changed_step(AS_IT_IS, spec, report, compiler), report)
    if budget_bytes is None:
        budget_bytes = report.verdict.pool_bytes
    if budget_bytes is None:
        raise MemprofError(f"{target.name} has no fixed amount of memory: state a budget, such as 30GiB")
    try:
        search.run(budget_bytes, allowed, with_curve=with_curve)
    except BaseException:
        interrupted(search.plan(budget_bytes))
        raise
    return search.plan(budget_bytes)


def _host_bandwidth(target: Target) -> float:
    """Return the bandwidth of the link to the host, in bytes per second and direction.

    Raises:
        MemprofError: it is unknown, or memory of the host is of no use.
    """
    if target.speeds is None or not family_of(target.platform).offloads:
        raise MemprofError(f"memprof cannot plan offloading for {target.name}: use a GPU with a known link to its host")
    return target.speeds.host_bytes_per_second


class _Search:
    """The compiles of a step and its changes.

    Attributes:
        step: the step with the changes so far, and checkpoints in the chosen place.
        points: every compile, in order.
    """

    def __init__(self, compiler: Compiler, step: ChangedStep, report: Report) -> None:
        self._compiler, self.step = compiler, step
        self._label, self._report = step.spec.label, report  # of the unchanged step
        self._in_blocks = step  # the step with checkpoints around its blocks
        self.points: list[PlanPoint] = list(step.points)
        self.changes: list[PlannedChange] = []
        self._max_points = 0
        self._counts_storing = True  # in estimated times

    @property
    def _may_offload(self) -> bool:
        return self._compiler.host_bandwidth is not None

    @property
    def _time(self) -> StepTime:
        return self.step.time if self._counts_storing else StepTime()

    @property
    def _smallest_bytes(self) -> int:
        return min(point.footprint_bytes for point in self.points)

    def run(self, budget_bytes: int, allowed: Collection[Allowed], *, with_curve: bool) -> None:
        """Compile changes and checkpoints (see `plan_step`).

        Raises:
            MemprofError: nothing can be offloaded.
        """
        if self._smallest_bytes > budget_bytes:
            self._try_changes(allowed, budget_bytes)
        needs_checkpoints = self._smallest_bytes > budget_bytes
        if self._may_offload and not self.step.placement.is_loop and (with_curve or needs_checkpoints):
            raise MemprofError(
                f"{self._label} has no layers in a scan, so offloading saves nothing: XLA loads the results of"
                " unrolled layers back to the device at once"
            )
        if not self.step.blocks:  # checkpoints change nothing
            return
        if (needs_checkpoints or with_curve) and not self._may_offload:
            self._choose_place(0 if with_curve else budget_bytes)
        if with_curve:
            self._compile_curve()
        if needs_checkpoints:
            self._compile_candidates(budget_bytes)

    def plan(self, budget_bytes: int) -> CheckpointPlan:
        """Return the plan of all compiles so far."""
        best = best_within(self.points, budget_bytes)
        return CheckpointPlan(
            label=self._label,
            target=self._report.target,
            budget_bytes=budget_bytes,
            points=tuple(self.points),
            best=best,
            placement=self.step.placement,
            may_offload=self._may_offload,
            changes=tuple(self.changes),
            repeats=self._repeats_of(None if best is None else best.checkpoints),
        )

    def _try_changes(self, allowed: Collection[Allowed], budget_bytes: int) -> None:
        """Compile allowed changes in turn until the footprint is within the budget; keep those that save memory.

        A change may save nothing as long as other arrays make the peak, so it is tried again after others that do.
        """
        report, pending = self._report, [each for each in Allowed if each in allowed]
        tried_on: dict[Allowed, ChangedStep] = {}  # the step to which a change was no use
        while self._smallest_bytes > budget_bytes:
            each = next((each for each in pending if tried_on.get(each) is not self.step), None)
            if each is None:
                return
            step, num_compiles = self.step, len(self.points)
            report = self._try_change(each, report, budget_bytes)
            if self.step is step and len(self.points) > num_compiles:
                tried_on[each] = step
            else:
                pending.remove(each)

    def _try_change(self, allowed: Allowed, report: Report, budget_bytes: int) -> Report:
        """Compile the versions of a change, and keep those that save memory; return the report of the step so far."""
        step = Step(spec=self.step.spec, target=self._compiler.target, report=report, advice=upper_bounds(report))
        for change in (made for made in allowed.family(step) if made.rule == allowed.rule):
            smallest = self._smallest_bytes
            changed = self._compiler.report(change.spec, allowed.rule)
            found = changed_step(allowed.rule, change.spec, changed, self._compiler)
            found.points[0] = replace(found.points[0], num_parts=change.intent.num_parts)
            self.points += found.points
            if found.points[0].footprint_bytes >= smallest:
                break
            self.step, report = found, changed
            self.changes = [kept for kept in self.changes if kept.rule != allowed.rule]
            self.changes.append(PlannedChange(rule=allowed.rule, code=change.code, rewrite=change.rewrite))
            if not allowed.is_gradual or self._smallest_bytes <= budget_bytes:
                break
        return report

    def _choose_place(self, budget_bytes: int) -> None:
        """Put the checkpoints around user functions, if these are a better place for a budget than the blocks."""
        self._in_blocks = self.step
        self.step = in_best_place(self.step, budget_bytes)

    def _compile_candidates(self, budget_bytes: int) -> None:
        """Compile candidates that may fit and are faster than all points within the budget.

        For a scan, a mixture comes after all candidates, because it splits the scan in two, which copies its inputs.
        Storing may take less time than estimated, so the last compiles are of candidates that recompute less: one
        compile for a scan, whose unchanged step shows the cost of storing; all but one for unrolled layers.
        """
        self._max_points = len(self.points) + _MAX_COMPILES
        self._compile_choice(NOTHING_KEPT, choice_of(self.step.blocks, ()))
        if self._smallest_bytes > budget_bytes:
            self._choose_wider_place()
        if self._smallest_bytes > budget_bytes and self._try_groups(budget_bytes):
            return
        self._try_candidates(
            budget_bytes, self._max_points - 1 if self.step.placement.is_loop else len(self.points) + 1
        )
        if self.step.is_of_layers and self.step.placement.is_loop:
            self._try_mixture(budget_bytes)
            self._try_candidates(budget_bytes, self._max_points - 1)
        self._counts_storing = False
        is_storing_measured = self.step.placement.is_loop and keeps_results(self.points, budget_bytes)
        self._try_candidates(
            budget_bytes, min(self._max_points, len(self.points) + 1) if is_storing_measured else self._max_points
        )

    def _choose_wider_place(self) -> None:
        """Compare all places for the checkpoints, if the chosen one was estimated to fit, but does not."""
        if not self.step.is_settled:
            found = in_best_place(self._in_blocks, 0)
            if found.placement != self.step.placement:
                self.step = found
                self._compile_choice(NOTHING_KEPT, choice_of(self.step.blocks, ()))

    def _try_groups(self, budget_bytes: int) -> bool:
        """Compile blocks in groups, fastest first, until one fits. Return whether one does.

        Unrolled layers go into groups only if they are not predicted to fit without: keeping more may take less memory.
        If no groups are predicted to fit, the smallest are compiled, to show how far groups go.
        """
        if not self.step.placement.is_loop and self._may_fit(budget_bytes):
            return False
        chosen = self.step
        self.step = chosen if chosen.placement.has_blocks else self._in_blocks  # calls of functions have no groups
        choices = self.step.in_groups()
        for share in (1 - MARGIN, 1 + DOUBT):
            for each in choices:
                is_left = len(self.points) < self._max_points and self.step.known(each) is None
                if is_left and self.step.predicted(each.checkpoints) <= share * budget_bytes:
                    self._compile_in_groups(each)
                    if self._smallest_bytes <= budget_bytes:
                        return True
        if all(point.group_size is None for point in self.points):
            self._compile_smallest_in_groups(choices)
        if self._smallest_bytes > budget_bytes:
            self.step = chosen
        return self._smallest_bytes <= budget_bytes

    def _may_fit(self, budget_bytes: int) -> bool:
        """Whether a candidate is predicted to fit."""
        return any(self.step.predicted(each.choice.checkpoints) <= budget_bytes for each in self._found_candidates())

    def _compile_in_groups(self, choice: Choice) -> None:
        self._compile_choice(CHOSEN if choice.kept else NOTHING_KEPT, choice)

    def _compile_smallest_in_groups(self, choices: Sequence[Choice]) -> None:
        """Compile the choice in groups with the smallest prediction, if that is clearly below all footprints so far."""

        def predicted(choice: Choice) -> int:
            return self.step.predicted(choice.checkpoints)

        smallest = min(choices, key=predicted, default=None)
        if smallest is not None and predicted(smallest) <= CLEARLY * self._smallest_bytes:
            self._compile_in_groups(smallest)

    def _try_candidates(self, budget_bytes: int, limit: int) -> None:
        candidates = self._found_candidates()
        while len(self.points) < limit:
            following = NextCompile(
                step=self.step,
                points=self.points,
                candidates=candidates,
                time=self._time,
                budget_bytes=budget_bytes,
                is_last=len(self.points) + 1 == self._max_points,
                may_leave_last=self.step.is_of_layers and not self.step.placement.is_loop and not self._counts_storing,
            )
            candidate = following.candidate()
            if candidate is None:
                return
            self._compile_choice(candidate.name, candidate.choice)

    def _found_candidates(self) -> list[Candidate]:
        """Return JAX's policies and choices of several sizes."""
        blocks, everything = self.step.blocks, self.step.everything().size_bytes
        shares = _CANDIDATE_SHARES if self._compiler.host_bandwidth is None else (0.0, *_CANDIDATE_SHARES)
        found = [
            Candidate(name=CHOSEN, choice=self.step.fastest(int(share * everything), self._time)) for share in shares
        ]
        policies = built_in_policies(blocks).items()
        found += [Candidate(name=name, choice=choice_of(blocks, kept)) for name, kept in policies]
        return list({each.choice: each for each in found}.values())

    def _compile_curve(self) -> None:
        """Compile choices for further budgets, and JAX's built-in policies."""
        everything = self.step.everything()
        self._compile_choice(NOTHING_KEPT, choice_of(self.step.blocks, ()))
        for name, kept in built_in_policies(self.step.blocks).items():
            self._compile_choice(name, choice_of(self.step.blocks, kept))
        for share in _CURVE_SHARES if self._compiler.host_bandwidth is None else (0.0, *_CURVE_SHARES):
            self._compile_choice(CHOSEN, self.step.fastest(int(share * everything.size_bytes), StepTime()))
        self._compile_smallest_in_groups(self.step.in_groups())

    def _repeats_of(self, checkpoints: Checkpoints | None) -> dict[str, int]:
        """Count the collectives and random numbers that are recomputed; all blocks of a mixture count as first."""
        return {} if checkpoints is None else dict(notable_repeats(self.step.blocks, checkpoints))

    def _try_mixture(self, budget_bytes: int) -> None:
        """Compile a mixture of a point within the budget and one above it: the last blocks keep more than the first.

        The backward pass begins with the last blocks, so their results are freed first.
        """
        fastest, time = self._time.fewest(self.points, budget_bytes), self._time
        found = mixtures(self.step.points, time, num_blocks=self.step.placement.num_blocks, budget_bytes=budget_bytes)
        for each in (mixture for mixture in found[:1] if mixture.seconds < fastest):
            for num_rest in range(each.num_rest, 0, -1):
                if len(self.points) == self._max_points:
                    return
                if self.step.predicted(self._checkpoints_of(each, num_rest)) > budget_bytes:
                    continue
                if self._compile_mixture(each, num_rest).footprint_bytes <= budget_bytes:
                    return

    def _checkpoints_of(self, mixture: Mixture, num_rest: int) -> Checkpoints:
        low, high = mixture.low.checkpoints, mixture.high.checkpoints
        assert low is not None  # only the unchanged step has none, and no point recomputes less
        rest = None if high is None else high.kept
        return Checkpoints(kept=low.kept, num_first=self.step.placement.num_blocks - num_rest, kept_by_rest=rest)

    def _compile_mixture(self, mixture: Mixture, num_rest: int) -> PlanPoint:
        low, high, share = mixture.low, mixture.high, num_rest / self.step.placement.num_blocks
        point = self.step.compiled(
            CHOSEN,
            self._checkpoints_of(mixture, num_rest),
            kept_bytes=round(low.kept_bytes + share * (high.kept_bytes - low.kept_bytes)),
            repeated_seconds=low.repeated_seconds + share * (high.repeated_seconds - low.repeated_seconds),
        )
        self.points.append(point)
        return point

    def _compile_choice(self, name: str, choice: Choice) -> None:
        """Compile a choice that is the same for all blocks, if it is not compiled yet."""
        if self.step.known(choice) is None:
            point = self.step.compiled(
                name,
                choice.checkpoints,
                kept_bytes=choice.size_bytes,
                repeated_seconds=choice.repeated_seconds,
                waiting_seconds=choice.waiting_seconds,
            )
            self.points.append(point)
