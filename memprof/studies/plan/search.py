"""Find checkpoints for a budget: predict the footprints of candidates, compile the fastest that fits, and repeat.

The unchanged step is compiled first. If it fits, the plan changes nothing. Otherwise at most four compiles follow: one
that keeps no results, then candidates. Candidates are choices of several sizes and JAX's built-in policies, with
checkpoints around all blocks or all but the last ones. If a scan does not fit even when it keeps nothing, its
iterations go into groups. Each candidate is traced, and earlier compiles correct the estimate of its footprint. Only a
compile shows the footprint, so the plan is the best compiled step within the budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import floor, inf

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
from memprof.studies.plan.candidates import best_within, built_in_policies
from memprof.studies.plan.choice import Choice, choice_of, notable_repeats
from memprof.studies.plan.mixtures import Mixture, mixtures
from memprof.studies.plan.plan import AS_IT_IS, CHOSEN, NOTHING_KEPT, CheckpointPlan, PlannedChange, PlanPoint
from memprof.studies.plan.steps import ChangedStep, Compiler, changed_step, in_best_place
from memprof.studies.plan.times import StepTime

_MAX_COMPILES = 4  # after the first
_CLOSE = 0.01  # of the budget: if less is left, another compile must be worthwhile
_WORTHWHILE = 0.1  # of the time that checkpoints add: a worthwhile compile saves this much
_MARGIN = 0.005  # of the budget: allowance for a footprint above its prediction
_DOUBT = 0.03  # of the budget: a prediction may be too high by this much; a compile decides
_CANDIDATE_SHARES = (0.05, 0.12, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)  # of all that could be kept: the sizes of candidates
_MANY_BLOCKS = 4
_HALVINGS = 3  # bisection steps between the sizes of two candidates
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
) -> CheckpointPlan:
    """Find the results to keep for the backward pass within a memory budget.

    Args:
        budget_bytes: limit of the footprint; None means JAX's pool on the target.
        allowed: changes to try before checkpoints; each is compiled, and kept if it lowers the footprint.
        with_curve: whether to compile choices for further budgets, and JAX's built-in policies.
        offload: whether results may be offloaded to host memory. The layers must be in a scan.

    Raises:
        MemprofError: the step differentiates nothing, the target has no fixed amount of memory, or nothing can be
            offloaded.
        WorkloadError: the step cannot be compiled.
        Exception: any error of the step while it is traced.
    """
    compiler = Compiler(target=target, progress=progress, host_bandwidth=_host_bandwidth(target) if offload else None)
    report = compiler.report(spec, AS_IT_IS)
    search = _Search(compiler, changed_step(AS_IT_IS, spec, report, compiler))
    if budget_bytes is None:
        budget_bytes = report.verdict.pool_bytes
    if budget_bytes is None:
        raise MemprofError(f"{target.name} has no fixed amount of memory: state a budget, such as 30GiB")
    if search.smallest_bytes > budget_bytes:
        search.try_changes(allowed, report, budget_bytes)
    if offload and not search.step.is_loop and (with_curve or search.smallest_bytes > budget_bytes):
        raise MemprofError(
            f"{spec.label} has no layers in a scan, so offloading saves nothing: XLA loads the results of unrolled"
            " layers back to the device at once"
        )
    needs_checkpoints = search.smallest_bytes > budget_bytes
    if (needs_checkpoints or with_curve) and not offload:
        search.step = in_best_place(search.step)
    if with_curve:
        search.compile_curve()
    if needs_checkpoints:
        search.compile_candidates(budget_bytes)
    best = search.best(budget_bytes)
    return CheckpointPlan(
        label=spec.label,
        target=report.target,
        budget_bytes=budget_bytes,
        points=tuple(search.points),
        best=best,
        num_blocks=search.step.num_blocks,
        is_loop=search.step.is_loop,
        changes=tuple(search.changes),
        places=search.step.places,
        functions=search.step.functions,
        has_blocks=search.step.has_blocks,
        repeats=search.repeats_of(None if best is None else best.checkpoints),
    )


def _host_bandwidth(target: Target) -> float:
    """Return the bandwidth of the link to the host, in bytes per second and direction.

    Raises:
        MemprofError: it is unknown, or memory of the host is of no use.
    """
    if target.speeds is None or not family_of(target.platform).offloads:
        raise MemprofError(f"memprof cannot plan offloading for {target.name}: use a GPU with a known link to its host")
    return target.speeds.host_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A choice to consider for a compile."""

    name: str
    choice: Choice


class _Search:
    """The compiles of a step and its changes, and the choice of the next one.

    Attributes:
        step: the step with the changes so far.
        points: every compile, in order.
    """

    def __init__(self, compiler: Compiler, step: ChangedStep) -> None:
        self._compiler, self.step = compiler, step
        self._candidates: list[_Candidate] = []
        self.points: list[PlanPoint] = list(step.points)
        self.changes: list[PlannedChange] = []
        self._max_points = 0
        self._counts_storing = True  # in estimated times

    @property
    def _time(self) -> StepTime:
        return self.step.time if self._counts_storing else StepTime()

    @property
    def smallest_bytes(self) -> int:
        """The smallest footprint so far."""
        return min(point.footprint_bytes for point in self.points)

    def try_changes(self, allowed: Collection[Allowed], report: Report, budget_bytes: int) -> None:
        """Compile allowed changes in turn until the footprint is within the budget; keep those that save memory."""
        for each in Allowed:
            if each not in allowed or self.smallest_bytes <= budget_bytes:
                continue
            step = Step(spec=self.step.spec, target=self._compiler.target, report=report, advice=upper_bounds(report))
            for change in (made for made in each.family(step) if made.rule == each.rule):
                smallest = self.smallest_bytes
                changed = self._compiler.report(change.spec, each.rule)
                found = changed_step(each.rule, change.spec, changed, self._compiler)
                found.points[0] = replace(found.points[0], num_parts=change.intent.num_parts)
                self.points += found.points
                if found.points[0].footprint_bytes >= smallest:
                    break
                self.step, report = found, changed
                self.changes = [kept for kept in self.changes if kept.rule != each.rule]
                self.changes.append(PlannedChange(rule=each.rule, code=change.code, rewrite=change.rewrite))
                if not each.is_gradual or self.smallest_bytes <= budget_bytes:
                    break

    def compile_candidates(self, budget_bytes: int) -> None:
        """Compile candidates that may fit and are faster than all points within the budget.

        For a scan, a mixture comes after all candidates, because it splits the scan in two, which copies its inputs.
        Storing may take less time than estimated, so the last compiles are of candidates that recompute less: one
        compile for a scan, whose unchanged step shows the cost of storing; all but one for unrolled layers.
        """
        self._max_points = len(self.points) + _MAX_COMPILES
        self._compile_choice(NOTHING_KEPT, choice_of(self.step.blocks, ()))
        if self.smallest_bytes > budget_bytes and self._try_groups(budget_bytes):
            return
        self._try_candidates(budget_bytes, self._max_points - 1 if self.step.is_loop else len(self.points) + 1)
        if self.step.is_of_layers and self.step.is_loop:
            self._try_mixture(budget_bytes)
            self._try_candidates(budget_bytes, self._max_points - 1)
        self._counts_storing = False
        is_storing_measured = self.step.is_loop and self._keeps_results(budget_bytes)
        self._try_candidates(
            budget_bytes, min(self._max_points, len(self.points) + 1) if is_storing_measured else self._max_points
        )

    def _try_groups(self, budget_bytes: int) -> bool:
        """Compile scans in groups of iterations, fastest first, until one fits. Return whether one does.

        If none is predicted to fit, the smallest is compiled, to show how far groups go.
        """
        choices = self.step.in_groups()
        for share in (1 - _MARGIN, 1 + _DOUBT):
            for each in choices:
                is_left = len(self.points) < self._max_points and self.step.known(each) is None
                if is_left and self.step.predicted(each.checkpoints) <= share * budget_bytes:
                    self._compile_in_groups(each)
                    if self.smallest_bytes <= budget_bytes:
                        return True
        if not any(point.is_in_groups for point in self.points):
            self._compile_smallest_in_groups(choices)
        return self.smallest_bytes <= budget_bytes

    def _compile_in_groups(self, choice: Choice) -> None:
        self._compile_choice(CHOSEN if choice.kept else NOTHING_KEPT, choice)

    def _compile_smallest_in_groups(self, choices: Sequence[Choice]) -> None:
        """Compile the choice in groups with the smallest prediction, if that is clearly below all footprints so far."""

        def predicted(choice: Choice) -> int:
            return self.step.predicted(choice.checkpoints)

        smallest = min(choices, key=predicted, default=None)
        if smallest is not None and predicted(smallest) <= CLEARLY * self.smallest_bytes:
            self._compile_in_groups(smallest)

    def _try_candidates(self, budget_bytes: int, limit: int) -> None:
        self._candidates = self._found_candidates()
        while len(self.points) < limit:
            candidate = self._next(budget_bytes, 1 - _MARGIN) or self._next(budget_bytes, 1 + _DOUBT)
            if candidate is None:
                return
            self._compile_choice(candidate.name, candidate.choice)

    def _keeps_results(self, budget_bytes: int) -> bool:
        """Whether a point fits the budget, and the best one keeps results."""
        best = self.best(budget_bytes)
        return best is not None and best.name != NOTHING_KEPT

    def _is_close(self, budget_bytes: int) -> bool:
        """Whether the best point within the budget keeps results and leaves little of the budget unused."""
        best = self.best(budget_bytes)
        is_full = best is not None and budget_bytes - best.footprint_bytes <= _CLOSE * budget_bytes
        return is_full and self._keeps_results(budget_bytes)

    def best(self, budget_bytes: int) -> PlanPoint | None:
        """Return the unchanged step if it fits, otherwise the fastest point that fits; None if no point does."""
        return best_within(self.points, budget_bytes)

    def _found_candidates(self) -> list[_Candidate]:
        """Return JAX's policies and choices of several sizes."""
        blocks, everything = self.step.blocks, self.step.everything().size_bytes
        shares = _CANDIDATE_SHARES if self._compiler.host_bandwidth is None else (0.0, *_CANDIDATE_SHARES)
        found = [_Candidate(name=CHOSEN, choice=self._fastest(int(share * everything))) for share in shares]
        policies = built_in_policies(blocks).items()
        found += [_Candidate(name=name, choice=choice_of(blocks, kept)) for name, kept in policies]
        return list({each.choice: each for each in found}.values())

    def _next(self, budget_bytes: int, share: float) -> _Candidate | None:
        """Return the fastest candidate that is predicted to fit.

        Args:
            share: the share of the budget that a prediction may take.
        """
        if self._must_be_safe(budget_bytes):
            return self._smallest(self._faster(budget_bytes), doubt=0.0)
        found = self._fastest_uniform(budget_bytes, share)
        if found is not None and self._is_close(budget_bytes):
            base, fewest = self._time.base_seconds, self._fewest_seconds(budget_bytes)
            is_worthwhile = self._seconds(found.choice) - base <= (1 - _WORTHWHILE) * (fewest - base)
            found = found if is_worthwhile else None
        if not self.step.is_of_layers or self.step.is_loop or self._counts_storing:
            return found
        fastest = min(self._fewest_seconds(budget_bytes), inf if found is None else self._seconds(found.choice))
        is_known = any(each.checkpoints and each.checkpoints.num_first for each in self.step.points)
        return self._fastest_without_last(int((share if is_known else 1 - _DOUBT) * budget_bytes), fastest) or found

    def _must_be_safe(self, budget_bytes: int) -> bool:
        """Whether this is the last compile, and no point that keeps results fits the budget yet."""
        return len(self.points) + 1 == self._max_points and not self._keeps_results(budget_bytes)

    def _faster(self, budget_bytes: int) -> list[_Candidate]:
        """Return the candidates that are estimated to be faster than all compiles within the budget, fastest first.

        If storing takes time, candidates that are no faster than a smaller one are dropped, unless no compile fits yet:
        keeping more may take less memory.
        """
        limit, smallest = self._fewest_seconds(budget_bytes), inf
        drops_dominated = bool(self._time.seconds_per_byte) and limit < inf
        found: list[_Candidate] = []
        for each in sorted(self._candidates, key=lambda each: (self._seconds(each.choice), each.choice.size_bytes)):
            if self._seconds(each.choice) < limit and (each.choice.size_bytes < smallest or not drops_dominated):
                found.append(each)
                smallest = min(smallest, each.choice.size_bytes)
        return found

    def _fastest(self, budget_bytes: int) -> Choice:
        return self.step.fastest(budget_bytes, self._time)

    def _seconds(self, choice: Choice) -> float:
        return self._time.of(choice)

    def _fewest_seconds(self, budget_bytes: int) -> float:
        """Return the shortest estimated time of a point within the budget; infinity if no point fits."""
        within = (each for each in self.points if each.footprint_bytes <= budget_bytes)
        return min(map(self._time.of_point, within), default=inf)

    def _smallest(self, candidates: Sequence[_Candidate], *, doubt: float) -> _Candidate | None:
        """Return the fastest candidate whose prediction exceeds the smallest one by at most a share."""
        unknown = [each for each in candidates if self.step.known(each.choice) is None]
        predictions = [self.step.predicted(each.choice.checkpoints) for each in unknown]
        smallest = min(predictions, default=0)
        near = (each for each, size in zip(unknown, predictions, strict=True) if size <= (1 + doubt) * smallest)
        return next(near, None)

    def _fastest_without_last(self, most: int, seconds: float) -> _Candidate | None:
        """Return the fastest candidate that leaves the last blocks without a checkpoint and is predicted to fit.

        Args:
            most: limit of its footprint, in bytes.
            seconds: time that it must beat.
        """
        found, unchanged_seconds = None, self._time.of_point(self.step.points[0])
        for each in (
            candidate for candidate in self._candidates if self._seconds(candidate.choice) > unchanged_seconds
        ):
            # The fewest blocks without a checkpoint that make it faster; most candidates are too large with these.
            uniform_seconds = self._seconds(each.choice)
            share = max(uniform_seconds - seconds, 0.0) / (uniform_seconds - unchanged_seconds)
            fewest = floor(self.step.num_blocks * min(share, 1.0)) + 1
            number = self._max_without_checkpoint(each.choice, fewest, most)
            choice = self.step.without_last(each.choice, number)
            if number >= fewest and self.step.known(choice) is None:
                found = _Candidate(name=CHOSEN, choice=choice)
                seconds = uniform_seconds - (uniform_seconds - unchanged_seconds) * number / self.step.num_blocks
        return found

    def _max_without_checkpoint(self, choice: Choice, fewest: int, most: int) -> int:
        """Return how many last blocks can do without a checkpoint: `fewest - 1` if `fewest` is too many.

        The number is bisected, because each block without a checkpoint takes more memory.
        """

        def is_too_large(number: int) -> bool:
            mixed = self.step.without_last(choice, number)
            known = self.step.known(mixed)
            return (self.step.predicted(mixed.checkpoints) if known is None else known.footprint_bytes) > most

        if fewest >= self.step.num_blocks or is_too_large(fewest):
            return fewest - 1
        return fewest + bisect_left(range(fewest + 1, self.step.num_blocks), True, key=is_too_large)

    def _fastest_uniform(self, budget_bytes: int, share: float) -> _Candidate | None:
        """Return the fastest candidate with the same choice for all blocks that is predicted to fit.

        If no compile that keeps results fits, the smallest candidate may be returned: values recomputed together are
        live together, so keeping more may use less memory than keeping nothing.
        """
        most, faster = int(share * budget_bytes), self._faster(budget_bytes)

        def fits(place: int) -> bool:
            is_compiled = self.step.known(faster[place].choice) is not None  # and was too large
            return not is_compiled and self.step.predicted(faster[place].choice.checkpoints) <= most

        places = range(len(faster))
        if any(block.count >= _MANY_BLOCKS for block in self.step.blocks):  # then slower choices are smaller
            place = bisect_left(places, True, key=fits)
        else:
            place = next(filter(fits, places), len(faster))
        above = faster[place - 1].choice if place else None
        if place < len(faster):
            return self._enlarged(faster[place], faster[place].choice, above, most)
        best = self.best(budget_bytes)
        if best is None or (best.name == NOTHING_KEPT and share > 1):
            return self._smallest(faster, doubt=_DOUBT)
        if best.checkpoints is None or best.checkpoints.num_first is not None:
            return None
        return self._enlarged(None, self.step.choice(best.checkpoints), above, most)

    def _enlarged(self, found: _Candidate | None, low: Choice, above: Choice | None, most: int) -> _Candidate | None:
        """Return a candidate that is faster than `low` and predicted to fit; `found` if there is none.

        Bisection finds the largest below the size of `above`, which is predicted not to fit.
        """
        if above is None or above.size_bytes <= low.size_bytes:
            return found
        small, large = low.size_bytes, above.size_bytes
        for _ in range(_HALVINGS):
            middle = (small + large) // 2
            choice = self._fastest(middle)
            known = self.step.known(choice)
            size = self.step.predicted(choice.checkpoints) if known is None else known.footprint_bytes
            if size > most:
                large = middle
                continue
            small = middle
            if known is None and self._seconds(choice) < self._seconds(low):
                found, low = _Candidate(name=CHOSEN, choice=choice), choice
        return found

    def compile_curve(self) -> None:
        """Compile choices for further budgets, and JAX's built-in policies."""
        everything = self.step.everything()
        self._compile_choice(NOTHING_KEPT, choice_of(self.step.blocks, ()))
        for name, kept in built_in_policies(self.step.blocks).items():
            self._compile_choice(name, choice_of(self.step.blocks, kept))
        for share in _CURVE_SHARES if self._compiler.host_bandwidth is None else (0.0, *_CURVE_SHARES):
            self._compile_choice(CHOSEN, self.step.fastest(int(share * everything.size_bytes), StepTime()))
        self._compile_smallest_in_groups(self.step.in_groups())

    def repeats_of(self, checkpoints: Checkpoints | None) -> dict[str, int]:
        """Count the collectives and random numbers that are recomputed; all blocks of a mixture count as first."""
        return {} if checkpoints is None else dict(notable_repeats(self.step.blocks, checkpoints))

    def _try_mixture(self, budget_bytes: int) -> None:
        """Compile a mixture of a point within the budget and one above it: the last blocks keep more than the first.

        The backward pass begins with the last blocks, so their results are freed first.
        """
        fastest, time = self._fewest_seconds(budget_bytes), self._time
        found = mixtures(self.step.points, time, num_blocks=self.step.num_blocks, budget_bytes=budget_bytes)
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
        return Checkpoints(kept=low.kept, num_first=self.step.num_blocks - num_rest, kept_by_rest=rest)

    def _compile_mixture(self, mixture: Mixture, num_rest: int) -> PlanPoint:
        low, high, share = mixture.low, mixture.high, num_rest / self.step.num_blocks
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
