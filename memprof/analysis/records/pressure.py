"""Memory pressure: that XLA recomputes values on its own, to stay below a limit of memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What XLA recomputes on its own.

    Attributes:
        planned_bytes: the part of the device's memory for which XLA plans; None if the device's memory is not known.
        planned_percent: the share of it that this is.
        recomputed_values: instructions of the program that XLA repeats.
        recomputed_flops: floating-point operations of their matrix products in one step.
        footprint_without_limit_bytes: of the same program, compiled without a limit of memory; None if it was not
            compiled so (a program that was compiled elsewhere, or is for a TPU).
    """

    planned_bytes: int | None
    recomputed_values: int
    recomputed_flops: int
    footprint_without_limit_bytes: int | None
    planned_percent: int = 80
