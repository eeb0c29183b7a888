"""From a budget to a policy: choose what to keep, compile, correct the budget by the difference, and choose again.

The first compile is of the step as it is. If that fits, the plan is to change nothing. Otherwise at most four compiles
follow: one in which nothing is kept, and choices for what it leaves of the budget. XLA decides what a choice takes: the
plan is the best of those whose compiled footprint is within the budget.
"""

from __future__ import annotations

from collections.abc import Callable

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture, Target
from memprof.analysis.records.checkpoints import Block
from memprof.capture.checkpointing.apply import checkpointed
from memprof.capture.checkpointing.evaluation import blocks_of
from memprof.capture.checkpointing.operations import block_of
from memprof.capture.checkpointing.signature import policy_of
from memprof.capture.compile import capture_of, traced_jaxpr
from memprof.capture.tracing.step import StepSpec
from memprof.errors import MemprofError
from memprof.studies.plan.choice import Choice, cheapest_choice, choice_of
from memprof.studies.plan.plan import AS_IT_IS, CHOSEN, NOTHING_KEPT, CheckpointPlan, PlanPoint

_MOST_COMPILES = 4  # beyond the first
_CLOSE = 0.01  # of the budget: what is left of it is not worth a compile
_MARGIN = 0.005  # of the budget: what a choice may come out above its size
_LEAST = 0.1  # of all that could be kept: with less, computing it again takes more memory than it saves


def plan_step(
    spec: StepSpec, target: Target, *, budget_bytes: int | None, progress: Callable[[str], None]
) -> CheckpointPlan:
    """Find what to keep.

    Args:
        budget_bytes: of the footprint; None: the pool that JAX has on the target.

    Raises:
        MemprofError: the step differentiates nothing, or the target has no fixed amount of memory.
        WorkloadError: the step cannot be compiled.
        Exception: whatever the step raises while it is traced.
    """
    search = _Search(spec, target, progress)
    capture, blocks, is_loop = search.as_it_is()
    if budget_bytes is None:
        budget_bytes = analyze(capture).verdict.pool_bytes
    if budget_bytes is None:
        raise MemprofError(f"{target.name} has no fixed amount of memory: say what the footprint may be, 30GiB say")
    if search.points[0].footprint_bytes > budget_bytes:
        search.look(blocks, budget_bytes)
    fits = [point for point in search.points if point.footprint_bytes <= budget_bytes]
    return CheckpointPlan(
        label=spec.label,
        target=capture.target,
        budget_bytes=budget_bytes,
        points=tuple(search.points),
        best=min(fits, key=_work, default=None),
        num_blocks=sum(block.count for block in blocks),
        is_loop=is_loop,
    )


class _Search:
    def __init__(self, spec: StepSpec, target: Target, progress: Callable[[str], None]) -> None:
        self._spec, self._target, self._progress = spec, target, progress
        self.points: list[PlanPoint] = []

    def as_it_is(self) -> tuple[Capture, list[Block], bool]:
        """Compile the step without a change, and find its blocks."""
        capture = self._compile(AS_IT_IS, None)
        with checkpointed(None) as functions:
            traced_jaxpr(self._spec, self._target)
        if not functions:
            raise MemprofError(
                f"{self._spec.label} differentiates nothing in reverse mode, so no checkpoint changes its memory"
            )
        self._progress("choosing")
        found = [(each, closed) for closed in functions for each in blocks_of(closed)]
        speeds = capture.target.speeds
        blocks = [block_of(body, count, speeds) for (body, count), _ in found]
        is_loop = any(equation.primitive.name == "scan" for closed in functions for equation in closed.jaxpr.eqns)
        return capture, blocks, is_loop

    def look(self, blocks: list[Block], budget_bytes: int) -> None:
        """Compile choices until one comes close to the budget, or enough of them."""
        nothing = self._changed(NOTHING_KEPT, choice_of(blocks, ()))
        tried = {nothing.choice.kept if nothing.choice else frozenset()}
        everything = choice_of(blocks, {each.signature for block in blocks for each in block.operations}).size_bytes
        allowance = max(budget_bytes - nothing.footprint_bytes, int(_LEAST * everything))
        for _ in range(_MOST_COMPILES - 1):
            choice = cheapest_choice(blocks, allowance - int(_MARGIN * budget_bytes))
            if choice.kept in tried:
                return
            tried.add(choice.kept)
            point = self._changed(CHOSEN, choice)
            left = budget_bytes - point.footprint_bytes
            if 0 <= left <= _CLOSE * budget_bytes:
                return
            allowance = choice.size_bytes + left

    def _changed(self, name: str, choice: Choice) -> PlanPoint:
        with checkpointed(policy_of(choice.kept)):
            self._compile(name, choice)
        return self.points[-1]

    def _compile(self, name: str, choice: Choice | None) -> Capture:
        number = len(self.points) + 1
        capture = capture_of(
            self._spec, self._target, progress=lambda stage: self._progress(f"{number}: {name}, {stage}")
        )
        self.points.append(
            PlanPoint(
                name=name,
                choice=choice,
                footprint_bytes=analyze(capture).unpressed.footprint_bytes,
                recomputed_flops=capture.recomputed_flops,
            )
        )
        return capture


def _work(point: PlanPoint) -> tuple[int, float, int]:
    """What a point costs: its repeated products, then all that is repeated, then its memory."""
    return (point.recomputed_flops, 0.0 if point.choice is None else point.choice.seconds, point.footprint_bytes)
