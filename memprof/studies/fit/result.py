"""What a search for the largest fitting value found, and what it tells of how the footprint grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# A slope that falls to less than this part of the one before it is a bend; slopes of one straight part differ by less,
# since XLA pads and shares buffers a little differently from size to size.
_BENT = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One compile: the value, its footprint as the compiler has it, and how long lowering and compiling took."""

    value: int
    footprint_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The answer and everything that was tried for it.

    Attributes:
        subject: what was profiled; `techniques` are applied to it, joined with `+`.
        value: a value of `field` that fits, while `next_value`, the one after it, does not. It is the largest that fits
            where the footprint is monotone; where it is not, a larger one that was not tried may fit too.
        step: only multiples of it were tried; `step_reason` says why where it is not 1.
        memory_bytes: of the device; `reserve_bytes` of it are left alone, the rest is the budget.
        reserve_reason: where the reserve comes from, in one sentence.
        tried: every compile, in the order in which they were made.
        command: the command line that profiles the answer.
    """

    subject: str
    techniques: str
    target: str
    field: str
    value: int
    step: int
    step_reason: str
    memory_bytes: int
    reserve_bytes: int
    reserve_reason: str
    tried: tuple[Trial, ...]
    command: str

    @property
    def budget_bytes(self) -> int:
        return self.memory_bytes - self.reserve_bytes

    @property
    def next_value(self) -> int:
        return self.value + self.step

    def footprint_of(self, value: int) -> int:
        """The measured footprint of a value that was tried."""
        return next(trial.footprint_bytes for trial in self.tried if trial.value == value)

    def findings(self) -> tuple[str, ...]:
        """Sentences about how the footprint grows where that is not as a straight line or worse."""
        return (*_falls(self.field, self.tried), *_bends(self.field, self.tried))


def _falls(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Where a larger value takes less memory: then values beyond the next one may fit too, which is said."""
    trials = sorted(tried, key=lambda trial: trial.value)
    return tuple(
        f"the footprint is not monotone: {field}={after.value} takes {after.footprint_bytes:,} bytes, less than the"
        f" {before.footprint_bytes:,} of {field}={before.value}; values that were not tried may behave otherwise"
        for before, after in pairwise(trials)
        if after.footprint_bytes < before.footprint_bytes
    )


def _bends(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Where the footprint grows more slowly than before: near the device's memory XLA rematerialises by itself."""
    trials = sorted(tried, key=lambda trial: trial.value)
    slopes = [
        (after.footprint_bytes - before.footprint_bytes) / (after.value - before.value)
        for before, after in pairwise(trials)
    ]
    for number, (slope, following) in enumerate(pairwise(slopes), start=1):
        if slope > 0 and 0 <= following < _BENT * slope:
            return (
                f"the footprint bends above {field}={trials[number].value}: it grows by {following:,.0f} bytes for each"
                f" one more, after {slope:,.0f} before; near the device's memory XLA rematerialises by itself, which"
                " costs time",
            )
    return ()
