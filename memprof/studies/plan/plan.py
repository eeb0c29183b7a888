"""A plan: the checkpoints that keep a step within a budget, and every compile of the search for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from memprof.analysis.records.capture import Target
from memprof.analysis.records.checkpoints import Checkpoints
from memprof.analysis.records.rewrites import Rewrite
from memprof.studies.pasted_code import pasteable
from memprof.studies.plan.placement import Placement

AS_IT_IS, NOTHING_KEPT, CHOSEN = "as it is", "nothing kept", "chosen"
DOTS, DOTS_WITHOUT_BATCH = "dots_saveable", "dots_with_no_batch_dims_saveable"  # policies of JAX
# The weight of recomputation in the time that ranks plans. On an H100, kernels that recompute GPT-2's layers took three
# times their bound, and whole steps 1.3 to 2.1 times (docs/plan.md).
RECOMPUTATION = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPoint:
    """One compile of a plan.

    Attributes:
        name: `as it is`, `nothing kept`, `chosen`, or the JAX policy that keeps the same results.
        checkpoints: the checkpoints; None for the unchanged step.
        kept_bytes, repeated_seconds: modeled totals over all blocks.
        footprint_bytes: footprint of the compiled plan, without XLA's own rematerialization.
        recomputed_flops: FLOPs of one step that are recomputed.
        waiting_seconds: lower bound on the wait for offloading transfers, from the compiled schedule.
        at_least_seconds: the roofline bound of the compiled step; None if there is none.
        host_bytes: host memory that the step needs.
        predicted_bytes: the footprint as estimated from earlier compiles; None for the first ones.
        num_parts: number of minibatches or chunks of an allowed change; otherwise 1.
    """

    name: str
    checkpoints: Checkpoints | None
    kept_bytes: int
    repeated_seconds: float
    footprint_bytes: int
    recomputed_flops: int
    predicted_bytes: int | None = None
    num_parts: int = 1
    waiting_seconds: float = 0.0
    at_least_seconds: float | None = None
    host_bytes: int = 0

    @property
    def is_offloading(self) -> bool:
        """Whether results are offloaded to host memory."""
        return self.checkpoints is not None and bool(self.checkpoints.offloaded)

    @property
    def group_size(self) -> int | None:
        """The number of layers or iterations in a group with another checkpoint; None if there are no groups."""
        return None if self.checkpoints is None else self.checkpoints.group_size

    @property
    def num_first(self) -> int | None:
        """The number of first layers that keep these results, if the last ones keep others; otherwise None."""
        return None if self.checkpoints is None else self.checkpoints.num_first


def ranking_seconds(points: Iterable[PlanPoint]) -> Callable[[PlanPoint], float]:
    """Return the function that ranks these points by time.

    The time is the step's roofline bound, with recomputation weighted by `RECOMPUTATION`. If any point has no bound,
    all points are ranked by the time of recomputation and transfers.
    """

    def with_bounds(point: PlanPoint) -> float:
        return (point.at_least_seconds or 0.0) + (RECOMPUTATION - 1) * point.repeated_seconds

    def without_bounds(point: PlanPoint) -> float:
        return point.repeated_seconds + point.waiting_seconds

    return without_bounds if any(each.at_least_seconds is None for each in points) else with_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """An allowed change that is part of a plan.

    Attributes:
        rule: the advice rule that proposes it.
        code: code to paste.
        rewrite: argument of `memprof.apply` that makes the change.
    """

    rule: str
    code: str
    rewrite: Rewrite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """The results to keep for the backward pass so that a step stays within a budget.

    Attributes:
        points: every compile, in order.
        best: the unchanged step if it fits the budget, otherwise the fastest point that fits; None if no point does.
        placement: the parts of the step that get a checkpoint.
        may_offload: whether results may be offloaded to host memory.
        changes: changes to the step before checkpoints are added.
        repeats: how many collectives and random numbers the plan recomputes in a step, by primitive.
    """

    label: str
    target: Target
    budget_bytes: int
    points: tuple[PlanPoint, ...]
    best: PlanPoint | None
    placement: Placement
    changes: tuple[PlannedChange, ...] = ()
    repeats: Mapping[str, int] = field(default_factory=dict)
    may_offload: bool = False

    @property
    def checkpoints(self) -> Checkpoints | None:
        """The checkpoints of the best point; None if no checkpoint is needed or no point fits."""
        return None if self.best is None else self.best.checkpoints

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """The rewrites of the changes, in order."""
        return tuple(each.rewrite for each in self.changes if each.rewrite is not None)

    @property
    def code(self) -> str:
        """The changes and checkpoints as code to paste; empty if no change is needed or no point fits."""
        if self.best is None:
            return ""
        changes = [each.code for each in self.changes]
        return pasteable(*changes, *([] if self.checkpoints is None else [self.placement.code(self.checkpoints)]))

    @property
    def curve(self) -> tuple[PlanPoint, ...]:
        """The Pareto-optimal points in footprint, FLOPs and time, largest footprint first."""
        seconds = ranking_seconds(self.points)

        def order(point: PlanPoint) -> tuple[int, float, int]:
            return (point.footprint_bytes, seconds(point), point.recomputed_flops)

        def is_no_worse(one: PlanPoint, other: PlanPoint) -> bool:
            return one.recomputed_flops <= other.recomputed_flops and seconds(one) <= seconds(other)

        found: list[PlanPoint] = []
        for point in sorted(self.points, key=order):
            if not any(is_no_worse(each, point) for each in found):
                found.append(point)
        return tuple(reversed(found))
