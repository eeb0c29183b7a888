"""Memory pressure: XLA recomputes values by itself to stay below a memory limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The values that XLA recomputes by itself.

    Attributes:
        planned_bytes: the part of the device's memory for which XLA plans; None if the device's memory is unknown.
        planned_for: what this part is: JAX's pool, or XLA's own share of the device.
        recomputed_values: the number of instructions that XLA repeats.
        recomputed_flops: FLOPs of their matrix products in one step.
        footprint_without_limit_bytes: the footprint of the same program, compiled without a memory limit; None if it
            was not compiled (a program compiled elsewhere, or for a TPU).
    """

    planned_bytes: int | None
    recomputed_values: int
    recomputed_flops: int
    footprint_without_limit_bytes: int | None
    planned_for: str = "JAX's pool"
