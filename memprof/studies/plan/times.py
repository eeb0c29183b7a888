"""An estimate of a step's time from its checkpoints, for the choice of what to compile.

Recomputing a result takes time, and so does keeping it: it is written in the forward pass and read in the backward
pass. In a scan it is also copied into the array of all iterations, and out of it. The compiles so far tell what keeping
a byte costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.studies.plan.choice import Choice
from memprof.studies.plan.plan import NOTHING_KEPT, RECOMPUTATION, PlanPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """What the time of a step consists of.

    Attributes:
        base_seconds: the time without recomputation, if nothing were kept; 0 if it is unknown.
        recomputation: the factor of the recomputation's time.
        seconds_per_byte: the time that each kept byte adds.
    """

    base_seconds: float = 0.0
    recomputation: float = 1.0
    seconds_per_byte: float = 0.0

    def of(self, choice: Choice) -> float:
        """Estimate the time of a step with a choice."""
        return self._estimate(choice.size_bytes, choice.repeated_seconds, choice.waiting_seconds)

    def of_point(self, point: PlanPoint) -> float:
        """Estimate the time of a compiled step by the same model, so that it can be compared with choices.

        The model does not hold for layers without a checkpoint, which XLA fuses differently: there, the bound counts.
        """
        is_uniform = point.checkpoints is not None and point.checkpoints.num_first is None
        if self.base_seconds and point.at_least_seconds is not None and not is_uniform:
            return point.seconds
        return self._estimate(point.kept_bytes, point.repeated_seconds, point.waiting_seconds)

    def _estimate(self, kept_bytes: int, repeated_seconds: float, waiting_seconds: float) -> float:
        added = self.recomputation * repeated_seconds + waiting_seconds + self.seconds_per_byte * kept_bytes
        return self.base_seconds + added


def step_time(points: Sequence[PlanPoint], memory_bandwidth: float | None) -> StepTime:
    """Fit the estimate to the roofline bounds of a step's compiles.

    The base is that of the compile that keeps nothing. The time per kept byte is a least-squares fit of the others. It
    is at least the time to write the byte and to read it. Without bounds, only recomputation and transfers count.

    Args:
        memory_bandwidth: of the device's memory, in bytes per second.
    """
    bounds = [
        (each.kept_bytes, each.at_least_seconds - each.repeated_seconds)
        for each in points
        if each.at_least_seconds is not None and not each.is_offloading
    ]
    nothing = next((each for each in points if each.name == NOTHING_KEPT and not each.is_offloading), None)
    if nothing is None or nothing.at_least_seconds is None or memory_bandwidth is None:
        return StepTime()
    base = nothing.at_least_seconds - nothing.repeated_seconds
    slope = sum(size * (seconds - base) for size, seconds in bounds) / max(sum(size**2 for size, _ in bounds), 1)
    least = 2 / memory_bandwidth
    return StepTime(base_seconds=base, recomputation=RECOMPUTATION, seconds_per_byte=max(slope, least))
