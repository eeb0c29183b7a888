"""The least time of a step on a device, at the peaks of that device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A bound on the time of one step: computed from the plan, never measured. See `analysis/roofline/bound.py`.

    Attributes:
        at_least_seconds: the bound: no schedule of the plan's kernels is faster, even at the device's peaks.
        compute_share, memory_share, communication_share: the parts of the bound that are limited by the peak of the
            arithmetic, by the memory's bandwidth, and by a link to other devices or to the host; they add up to 1.
        priced_share: the share of a step's kernels that have a price; the others count as 0 seconds.
    """

    at_least_seconds: float
    compute_share: float
    memory_share: float
    communication_share: float
    priced_share: float
