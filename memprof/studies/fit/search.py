"""Find the largest value that fits in few measurements: a search that knows how footprints grow.

Each measurement is a compile, so the number of measurements is the cost. The footprint of a step is close to piecewise
linear in the batch: each program point holds a fixed part and a part per example, and the highest point decides. So the
search goes to the value where the line through the two nearest measured values meets the budget (the secant method),
and ends when one value fits and the next one does not. If lines mislead twice, at a kink for example, a halving step
follows, so the search needs at most a few times the measurements of plain bisection.

    find_largest({1: 10, 2: 20, ...}.__getitem__, start=4, step=1, budget_bytes=75)      # 7

The search does not depend on the kind of value: `measure` returns the bytes of a value.
"""

from __future__ import annotations

from collections.abc import Callable

from memprof.errors import MemprofError

MAX_VALUE = 2**31 - 1  # sizes of arrays are 32-bit numbers in most programs
_NUM_CAREFUL_LEAPS = 4  # after this many leaps the steepest slope seen no longer limits the next one
_STEEPNESS_AFTER_FLAT = 0.5
_NUM_MISLED = 2  # after this many steps along a line that do not halve the bracket, the search halves it
_LARGEST_LEAP = 16  # limit of an extrapolation along a line, as a multiple of the largest measured value


class NothingFitsError(MemprofError):
    """Not even the smallest value fits."""


def find_largest(
    measure: Callable[[int], int],
    *,
    start: int,
    step: int,
    budget_bytes: int,
    fixed_bytes: int | None = None,
    field: str = "it",
) -> int:
    """Return the largest value whose footprint is within the budget while that of the next value is not.

    Args:
        measure: maps a value to its footprint, in bytes. Called once for each value.
        start: the value to start at; a multiple of `step`.
        step: only multiples of it are tried.
        budget_bytes: the largest footprint that fits.
        fixed_bytes: estimate of the bytes that do not grow with the value, for the choice of the second measurement;
            None if unknown.
        field: name of the value in messages.

    Raises:
        NothingFitsError: the smallest value does not fit.
        MemprofError: the footprint does not depend on the value, or stays within the budget for every value.
    """
    assert start > 0, start
    assert start % step == 0, (start, step)
    search = _Search(measure, step=step, budget_bytes=budget_bytes, fixed_bytes=fixed_bytes, field=field)
    return search.run(start // step)


class _Search:
    """The state of one search. It counts in steps: `number` times `step` is the value."""

    def __init__(
        self, measure: Callable[[int], int], *, step: int, budget_bytes: int, fixed_bytes: int | None, field: str
    ) -> None:
        self._measure = measure
        self._step = step
        self._budget_bytes = budget_bytes
        self._fixed_bytes = fixed_bytes
        self._field = field
        self._sizes: dict[int, int] = {}

    def run(self, start: int) -> int:
        fits, exceeds = self._bracket(start)
        num_misled, confirmed = 0, False
        while exceeds - fits > 1:
            width, crossing = exceeds - fits, self._crossing(fits, exceeds)
            # If the line says that `fits` is the answer, measuring its neighbour ends the search. But not twice in a
            # row, because a misleading line would then be followed number by number.
            confirms = crossing == fits and not confirmed
            halves = num_misled == _NUM_MISLED and not confirms
            number = (fits + exceeds) // 2 if halves else max(crossing, fits + 1)
            if self._fits(number):
                fits = number
            else:
                exceeds = number
            num_misled = 0 if halves or exceeds - fits <= width // 2 else min(num_misled + 1, _NUM_MISLED)
            confirmed = confirms
        return fits * self._step

    def _bracket(self, start: int) -> tuple[int, int]:
        """Return a number that fits and a larger one that does not."""
        if not self._fits(start):
            return self._smallest(start), start
        steepest = 0.0 if self._fixed_bytes is None else (self._size(start) - self._fixed_bytes) / start
        fits, above = start, self._second(start, steepest)
        num_leaps = 0
        while self._fits(above):
            self._check_growth(fits, above)
            steepest = max(steepest, (self._size(above) - self._size(fits)) / (above - fits))
            following = self._next_above(fits, above)
            if num_leaps < _NUM_CAREFUL_LEAPS and steepest:
                # If XLA saves memory by itself, the line is flat for a while, and then about half as steep as before.
                # Following its flat part would lead far beyond the budget.
                gap_bytes = self._budget_bytes - self._size(above)
                following = min(following, above + max(1, int(gap_bytes / (_STEEPNESS_AFTER_FLAT * steepest))))
            num_leaps += 1
            fits, above = above, following
        return fits, above

    def _second(self, start: int, slope: float) -> int:
        """Return where the line from the fixed part meets the budget; twice the start if that part is unknown."""
        if slope <= 0:
            return 2 * start
        crossing = start + int((self._budget_bytes - self._size(start)) / slope)
        return min(max(crossing, start + 1), start * _LARGEST_LEAP, MAX_VALUE // self._step)

    def _smallest(self, start: int) -> int:
        if start == 1 or not self._fits(1):
            raise NothingFitsError(f"not even {self._field}={self._step} fits")
        return 1

    def _check_growth(self, below: int, above: int) -> None:
        """Raise `MemprofError` if a distant third footprint equals two equal ones: this is not just a plateau."""
        if self._size(below) != self._size(above):
            return
        far = above * _LARGEST_LEAP
        if far * self._step <= MAX_VALUE and self._size(far) == self._size(above):
            raise MemprofError(
                f"the footprint does not depend on {self._field}: it is the same {self._size(above):,} bytes at"
                f" {below * self._step:,}, {above * self._step:,} and {far * self._step:,}"
            )

    def _next_above(self, below: int, above: int) -> int:
        """Return where the line through two numbers that fit meets the budget, but at least one further up."""
        largest = MAX_VALUE // self._step
        if above >= largest:
            raise MemprofError(
                f"every {self._field} up to {above * self._step:,} fits; the footprint there is"
                f" {self._size(above):,} of {self._budget_bytes:,} bytes"
            )
        crossing = self._crossing(below, above)
        return min(max(crossing, above + 1), above * _LARGEST_LEAP, largest)

    def _crossing(self, below: int, above: int) -> int:
        """Return the last number within the budget if the footprint were a line through the two."""
        size, rise = self._size(below), self._size(above) - self._size(below)
        if rise <= 0:
            return above * _LARGEST_LEAP
        return below + (self._budget_bytes - size) * (above - below) // rise

    def _fits(self, number: int) -> bool:
        return self._size(number) <= self._budget_bytes

    def _size(self, number: int) -> int:
        if number not in self._sizes:
            self._sizes[number] = self._measure(number * self._step)
        return self._sizes[number]
