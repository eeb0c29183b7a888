"""Estimate a step's time from its checkpoints, to choose the next compile.

Recomputing a result takes time, and so does storing it: it is written in the forward pass and read in the backward
pass. In a scan it is also copied into the array of all iterations, and out of it. The time per stored byte is fitted to
earlier compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from memprof.studies.plan.choice import Choice
from memprof.studies.plan.plan import NOTHING_KEPT, RECOMPUTATION, PlanPoint, ranking_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The parts of a step's time.

    Attributes:
        base_seconds: the time without recomputation if only `base_bytes` are stored; 0 if unknown.
        base_bytes: bytes stored in any case.
        recomputation: weight of recomputation time.
        seconds_per_byte: the time that each stored byte adds, on the device or on the host.
    """

    base_seconds: float = 0.0
    base_bytes: int = 0
    recomputation: float = 1.0
    seconds_per_byte: float = 0.0

    def of(self, choice: Choice) -> float:
        """Estimate the time of a step with a choice."""
        stored_bytes = choice.size_bytes + choice.offloaded_bytes
        return self._estimate(stored_bytes, choice.repeated_seconds, choice.waiting_seconds)

    def of_point(self, point: PlanPoint) -> float:
        """Return the time of a compiled step, comparable with the estimate of a choice.

        This is the estimate, or the bound if that is larger. The estimate does not hold for layers without a
        checkpoint, which XLA fuses differently, so there only the bound counts.
        """
        bound = ranking_seconds([point])(point) if self.base_seconds else 0.0
        if self.base_seconds and not _is_uniform(point):
            return bound
        stored_bytes = point.kept_bytes + (point.host_bytes if point.is_offloading else 0)
        return max(self._estimate(stored_bytes, point.repeated_seconds, point.waiting_seconds), bound)

    def fewest(self, points: Iterable[PlanPoint], budget_bytes: int) -> float:
        """Return the shortest time of a point within a budget, in seconds; infinity if no point fits."""
        return min((self.of_point(each) for each in points if each.footprint_bytes <= budget_bytes), default=inf)

    def _estimate(self, stored_bytes: int, repeated_seconds: float, waiting_seconds: float) -> float:
        storing_seconds = self.seconds_per_byte * (stored_bytes - self.base_bytes)
        return self.base_seconds + self.recomputation * repeated_seconds + waiting_seconds + storing_seconds


def _is_uniform(point: PlanPoint) -> bool:
    """Whether all blocks have a checkpoint, with one policy."""
    return point.checkpoints is not None and point.checkpoints.num_first is None


def step_time(points: Sequence[PlanPoint], memory_bandwidth: float | None, *, is_loop: bool) -> StepTime:
    """Fit the estimate to the roofline bounds of a step's compiles.

    The base comes from the compile that keeps nothing. The time per stored byte is a least-squares fit to the others,
    and at least the time to write and read the byte. Without bounds, only recomputation and transfers count.

    Args:
        memory_bandwidth: of the device's memory, in bytes per second.
        is_loop: whether the blocks are iterations of scans, which store results also without checkpoints.
    """
    base_point = next((each for each in points if each.name == NOTHING_KEPT and not each.is_offloading), None)
    if base_point is None or memory_bandwidth is None or any(each.at_least_seconds is None for each in points):
        return StepTime()

    def without_recomputation(point: PlanPoint) -> float:
        return (point.at_least_seconds or 0.0) - point.repeated_seconds

    base = without_recomputation(base_point)
    fitted = [
        (each.kept_bytes - base_point.kept_bytes, without_recomputation(each) - base)
        for each in points
        if not each.is_offloading and each.group_size is None and (is_loop or _is_uniform(each))
    ]
    slope = sum(size * seconds for size, seconds in fitted) / max(sum(size**2 for size, _ in fitted), 1)
    return StepTime(
        base_seconds=base,
        base_bytes=base_point.kept_bytes,
        recomputation=RECOMPUTATION,
        seconds_per_byte=max(slope, 2 / memory_bandwidth),
    )
