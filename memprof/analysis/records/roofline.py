"""The least time that a step takes on a device, by the peaks of that device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A bound on the time of one step: computed from the plan, never measured. See `analysis/roofline/bound.py`.

    Attributes:
        at_least_seconds: no schedule of the plan's kernels is faster, if each runs at the device's peaks.
        compute_share, memory_share, communication_share: the parts of it that are limited by the peak of the
            arithmetic, by the memory's bandwidth, and by a link to other devices or to the host; they add up to 1.
        priced_share: how many of the kernels that a step runs have a price; the others count as 0 seconds.
    """

    at_least_seconds: float
    compute_share: float
    memory_share: float
    communication_share: float
    priced_share: float
