"""Find checkpoints for a budget: choose what to keep, compile, correct the budget by the difference, and repeat.

The first compile is of the unchanged step. If it fits, the plan changes nothing. Otherwise at most four compiles
follow: one that keeps no results, choices for the rest of the budget, a mixture in which the first blocks keep less
than the others, and JAX's built-in policies if they may cost less. XLA decides the footprint of a choice, so the plan
is the best choice whose compiled footprint is within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Target
from memprof.analysis.records.checkpoints import Block, Checkpoints, Signature
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.apply import checkpointed
from memprof.sources.jax.checkpointing.blocks import find_repeated, is_loop
from memprof.sources.jax.checkpointing.evaluation import blocks_of
from memprof.sources.jax.checkpointing.operations import block_of
from memprof.sources.jax.compile import capture_of, traced_jaxpr
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advise import upper_bounds
from memprof.studies.changes.change import Step
from memprof.studies.plan.allowed import Allowed
from memprof.studies.plan.candidates import built_in_policies, fewest_seconds, point_of, predicted_bytes, signatures_of
from memprof.studies.plan.choice import Choice, cheapest_choice, choice_of, notable_repeats
from memprof.studies.plan.mixtures import Mixture, mixtures
from memprof.studies.plan.plan import AS_IT_IS, CHOSEN, NOTHING_KEPT, CheckpointPlan, PlannedChange, PlanPoint

_MAX_COMPILES = 4  # after the first
_CLOSE = 0.01  # of the budget: a smaller remainder is not worth a compile
_MARGIN = 0.005  # of the budget: allowance for a choice that exceeds its size
_EXPLORED = (0.35, 0.2, 0.5)  # of all that could be kept: choices to try if a correction of the budget leads nowhere
_FEW = 4  # blocks
_CURVE = (0.2, 0.35, 0.5, 0.65, 0.8)  # of all that could be kept: choices of a curve


def plan_step(
    spec: StepSpec,
    target: Target,
    *,
    budget_bytes: int | None,
    with_curve: bool = False,
    allowed: Collection[Allowed] = (),
    progress: Callable[[str], None],
) -> CheckpointPlan:
    """Find the results to keep.

    Args:
        budget_bytes: limit of the footprint; None means JAX's pool on the target.
        allowed: changes to try before checkpoints; each is compiled, and kept if it lowers the footprint.
        with_curve: whether to compile choices for further budgets, and JAX's built-in policies.

    Raises:
        MemprofError: the step differentiates nothing, or the target has no fixed amount of memory.
        WorkloadError: the step cannot be compiled.
        Exception: any error of the step while it is traced.
    """
    search = _Search(spec, target, progress)
    report = search.as_it_is()
    if budget_bytes is None:
        budget_bytes = report.verdict.pool_bytes
    if budget_bytes is None:
        raise MemprofError(f"{target.name} has no fixed amount of memory: say what the footprint may be, 30GiB say")
    if search.smallest_bytes > budget_bytes:
        search.change(allowed, report, budget_bytes)
    if with_curve:
        search.draw()
    if search.smallest_bytes > budget_bytes:
        search.look(budget_bytes)
    fits = [point for point in search.points if point.footprint_bytes <= budget_bytes]
    best = min(fits, key=_work, default=None)
    return CheckpointPlan(
        label=spec.label,
        target=report.target,
        budget_bytes=budget_bytes,
        points=tuple(search.points),
        best=best,
        num_blocks=search.num_blocks,
        is_loop=search.is_loop,
        changes=tuple(search.changes),
        repeats=search.repeats_of(None if best is None else best.checkpoints),
    )


class _Search:
    def __init__(self, spec: StepSpec, target: Target, progress: Callable[[str], None]) -> None:
        self._spec, self._target, self._progress = spec, target, progress
        self._blocks: list[Block] = []
        self.is_loop = False
        self.points: list[PlanPoint] = []
        self.changes: list[PlannedChange] = []
        self._limit = 0  # number of points

    @property
    def num_blocks(self) -> int:
        """The number of parts of the step that a checkpoint goes around."""
        return sum(block.count for block in self._blocks)

    @property
    def smallest_bytes(self) -> int:
        """The smallest footprint so far."""
        return min(point.footprint_bytes for point in self.points)

    def as_it_is(self) -> Report:
        """Compile the unchanged step, and find its blocks."""
        report = self._report(AS_IT_IS)
        self._find_blocks(report)
        self._add_without_checkpoints(AS_IT_IS, report)
        return report

    def change(self, allowed: Collection[Allowed], report: Report, budget_bytes: int) -> None:
        """Compile allowed changes in turn until the footprint is within the budget; keep those that save memory."""
        for each in Allowed:
            if each not in allowed or self.smallest_bytes <= budget_bytes:
                continue
            step = Step(spec=self._spec, target=self._target, report=report, advice=upper_bounds(report))
            change = next((made for made in each.family(step) if made.rule == each.rule), None)
            if change is None:
                continue
            before, self._spec = self._spec, change.spec
            changed = self._report(each.rule)
            self._find_blocks(changed)
            smallest = self.smallest_bytes
            if self._add_without_checkpoints(each.rule, changed).footprint_bytes < smallest:
                report = changed
                self.changes.append(PlannedChange(rule=each.rule, code=change.code, rewrite=change.rewrite))
            else:
                self._spec = before
                self._find_blocks(report)

    def _add_without_checkpoints(self, name: str, report: Report) -> PlanPoint:
        kept_bytes = self._everything().size_bytes
        self.points.append(point_of(name, report, None, kept_bytes=kept_bytes, repeated_seconds=0.0))
        return self.points[-1]

    def _find_blocks(self, report: Report) -> None:
        with checkpointed(None) as functions:
            traced_jaxpr(self._spec, self._target)
        if not functions:
            raise MemprofError(
                f"{self._spec.label} differentiates nothing in reverse mode, so no checkpoint changes its memory"
            )
        self._progress("choosing")
        speeds, num_devices = report.target.speeds, report.target.topology.num_devices
        self._blocks = [
            block_of(body, count, speeds, num_devices=num_devices)
            for closed in functions
            for body, count in blocks_of(closed)
        ]
        self.is_loop = any(
            find_repeated(each.jaxpr) is None and any(map(is_loop, each.jaxpr.eqns)) for each in functions
        )

    def look(self, budget_bytes: int) -> None:
        """Compile choices until one comes close to the budget, or the number of compiles is exhausted."""
        self._limit = len(self.points) + _MAX_COMPILES
        nothing = self._keep(NOTHING_KEPT, ())
        is_layered = any(block.count >= _FEW for block in self._blocks)
        if is_layered and nothing.footprint_bytes <= budget_bytes:
            self._correct(nothing, budget_bytes)
        else:
            self._explore(nothing, budget_bytes)
        if nothing.repeated_seconds == fewest_seconds(self.points, budget_bytes):
            list(self._explored(budget_bytes))
        self._try_built_in(budget_bytes)

    def _correct(self, nothing: PlanPoint, budget_bytes: int) -> None:
        """Compile choices for the rest of the budget, then a mixture.

        A mixture cuts a scan in two, which copies the scan's inputs. So choices come first, as long as there are any.
        """
        allowance = budget_bytes - nothing.footprint_bytes
        while len(self.points) < self._limit - (self._can_mix() and not self.is_loop):
            choice = cheapest_choice(self._blocks, allowance - int(_MARGIN * budget_bytes))
            if self._known(choice) is not None or choice.seconds >= fewest_seconds(self.points, budget_bytes):
                break
            point = self._keep(CHOSEN, choice.kept)
            left = budget_bytes - point.footprint_bytes
            if 0 <= left <= _CLOSE * budget_bytes:
                return
            allowance = choice.size_bytes + left
        if self._can_mix():
            self._mix(budget_bytes)

    def _explore(self, nothing: PlanPoint, budget_bytes: int) -> None:
        """Compile choices of several sizes.

        If values are recomputed in few pieces, they are live at once. Keeping more may then use less memory.
        """
        for point in self._explored(budget_bytes):
            fits = point.footprint_bytes <= budget_bytes
            if fits and not point.recomputed_flops:
                return
            if not fits and nothing.footprint_bytes <= budget_bytes:
                self._correct(nothing, budget_bytes)
                return

    def _explored(self, budget_bytes: int) -> Iterator[PlanPoint]:
        """Compile choices of several sizes, each if it costs less than all points within the budget."""
        everything = self._everything().size_bytes
        for share in _EXPLORED:
            choice = cheapest_choice(self._blocks, int(share * everything))
            if len(self.points) < self._limit and choice.seconds < fewest_seconds(self.points, budget_bytes):
                yield self._keep(CHOSEN, choice.kept)

    def _try_built_in(self, budget_bytes: int) -> None:
        """Compile JAX's policies that may fit by an estimate and cost less than all points within the budget."""
        for name, kept in built_in_policies(self._blocks).items():
            choice = choice_of(self._blocks, kept)
            predicted = predicted_bytes(self.points, choice)
            may_fit = predicted is not None and predicted <= (1 - _MARGIN) * budget_bytes
            is_faster = choice.seconds < fewest_seconds(self.points, budget_bytes)
            if may_fit and is_faster and len(self.points) < self._limit:
                self._keep(name, kept)

    def draw(self) -> None:
        """Compile choices for further budgets, and JAX's built-in policies."""
        everything = self._everything()
        self._keep(NOTHING_KEPT, ())
        for name, kept in built_in_policies(self._blocks).items():
            self._keep(name, kept)
        for share in _CURVE:
            self._keep(CHOSEN, cheapest_choice(self._blocks, int(share * everything.size_bytes)).kept)

    def repeats_of(self, checkpoints: Checkpoints | None) -> dict[str, int]:
        """Return the collectives and random numbers that checkpoints recompute; mixtures count all blocks as first."""
        return {} if checkpoints is None else dict(notable_repeats(self._blocks, checkpoints.kept))

    def _everything(self) -> Choice:
        return choice_of(self._blocks, signatures_of(self._blocks))

    def _can_mix(self) -> bool:
        """Whether the blocks are equal layers in sequence."""
        return len(self._blocks) == 1 and self._blocks[0].count > 1

    def _mix(self, budget_bytes: int) -> None:
        """Let the last blocks keep more than the first: a mixture of a point within the budget and one above it.

        The backward pass begins with the last blocks, so their results are freed first.
        """
        within = [point.repeated_seconds for point in self.points if point.footprint_bytes <= budget_bytes]
        found = mixtures(self.points, num_blocks=self.num_blocks, budget_bytes=budget_bytes)
        for each in (mixture for mixture in found[:1] if mixture.seconds < min(within)):
            for num_rest in range(each.num_rest, 0, -1):
                if len(self.points) == self._limit or self._mixed(each, num_rest).footprint_bytes <= budget_bytes:
                    return

    def _mixed(self, mixture: Mixture, num_rest: int) -> PlanPoint:
        low, high = mixture.low, mixture.high
        assert low.checkpoints is not None  # only the unchanged step has none, and no point recomputes less
        checkpoints = Checkpoints(
            kept=low.checkpoints.kept,
            num_first=self.num_blocks - num_rest,
            kept_by_rest=None if high.checkpoints is None else high.checkpoints.kept,
        )
        share = num_rest / self.num_blocks
        return self._compiled(
            CHOSEN,
            checkpoints,
            kept_bytes=round(low.kept_bytes + share * (high.kept_bytes - low.kept_bytes)),
            repeated_seconds=low.repeated_seconds + share * (high.repeated_seconds - low.repeated_seconds),
            predicted=round(low.footprint_bytes + share * (high.footprint_bytes - low.footprint_bytes)),
        )

    def _keep(self, name: str, kept: Collection[Signature]) -> PlanPoint:
        """Return the point at which all blocks keep some results; compile it if that has not been done."""
        choice = choice_of(self._blocks, kept)
        known = self._known(choice)
        if known is not None:
            return known
        return self._compiled(
            name,
            Checkpoints(kept=choice.kept),
            kept_bytes=choice.size_bytes,
            repeated_seconds=choice.seconds,
            predicted=predicted_bytes(self.points, choice),
        )

    def _known(self, choice: Choice) -> PlanPoint | None:
        return next((point for point in self.points if point.checkpoints == Checkpoints(kept=choice.kept)), None)

    def _compiled(
        self, name: str, checkpoints: Checkpoints, *, kept_bytes: int, repeated_seconds: float, predicted: int | None
    ) -> PlanPoint:
        with checkpointed(checkpoints):
            report = self._report(name)
        point = point_of(name, report, checkpoints, kept_bytes=kept_bytes, repeated_seconds=repeated_seconds)
        self.points.append(replace(point, predicted_bytes=predicted))
        return self.points[-1]

    def _report(self, name: str) -> Report:
        number = len(self.points) + 1
        fresh = capture_of(
            self._spec, self._target, progress=lambda stage: self._progress(f"{number}: {name}, {stage}")
        )
        return analyze(fresh.capture, fresh.decoded, with_order=False)


def _work(point: PlanPoint) -> tuple[int, float, int]:
    """Return the cost of a point: recomputed FLOPs, then the time of recomputation, then memory."""
    return (point.recomputed_flops, point.repeated_seconds, point.footprint_bytes)
