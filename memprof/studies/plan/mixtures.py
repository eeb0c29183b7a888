"""Mixtures: the first layers keep less for the backward pass than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor

from memprof.studies.plan.plan import PlanPoint
from memprof.studies.plan.times import StepTime

_MARGIN = 0.005  # of the budget: allowance for a mixture that exceeds its interpolated footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The checkpoints of one point around the first layers, and of another around the rest.

    Attributes:
        low: the point within the budget.
        high: the point above the budget, which is faster.
        num_rest: number of last layers that use `high`.
        seconds: the estimated time of the step, interpolated.
    """

    low: PlanPoint
    high: PlanPoint
    num_rest: int
    seconds: float


def mixtures(points: Sequence[PlanPoint], time: StepTime, *, num_blocks: int, budget_bytes: int) -> list[Mixture]:
    """Return the mixtures of two points whose interpolated footprint is within a budget, fastest first.

    Points that offload results are left out: a scan in two parts would copy the arrays in host memory. So are scans in
    groups of iterations.
    """
    return sorted(_mixtures(points, time, num_blocks, budget_bytes), key=lambda each: each.seconds)


def _mixtures(points: Sequence[PlanPoint], time: StepTime, num_blocks: int, budget_bytes: int) -> Iterator[Mixture]:
    points = [each for each in points if not each.is_offloading and each.group_size is None]
    for low in points:
        spare_bytes = (1 - _MARGIN) * budget_bytes - low.footprint_bytes
        for high in points:
            slow, fast = time.of_point(low), time.of_point(high)
            if spare_bytes <= 0 or high.footprint_bytes <= budget_bytes or fast >= slow:
                continue
            num_rest = floor(num_blocks * spare_bytes / (high.footprint_bytes - low.footprint_bytes))
            if 0 < num_rest < num_blocks:
                share = num_rest / num_blocks
                yield Mixture(low=low, high=high, num_rest=num_rest, seconds=slow + share * (fast - slow))
