"""Why a buffer is still live at the peak; `scheduling/schedule.py` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer


class Reason(StrEnum):
    """Why a buffer is live at the peak."""

    WHOLE_STEP = "whole step"  # an argument, a result or a constant
    ANY_ORDER = "any order"
    WAITING = "waiting"
    EARLY = "early"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the compiled program, with the terms of `LiveBuffer`."""

    name: str
    op: str
    source: str
    module: str
    phase: Phase
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A part of a chain: operations of one phase and module, each needing the one before; `op` is the first."""

    phase: Phase
    module: str
    op: str
    num_operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLive:
    """Why one buffer is live at the peak.

    Attributes:
        at_peak: the operation that runs at the peak; None if the temp block is empty.
        users: the operations that have yet to read or write its memory, in their order.
        ready: the position in program order after which the last user could run; -1 if from the start.
        chain: the chain by which the last user depends on the operation at the peak; empty if it does not.
    """

    buffer: LiveBuffer
    reason: Reason
    at_peak: Operation | None
    users: tuple[Operation, ...] = ()
    ready: int = -1
    chain: tuple[Link, ...] = ()
