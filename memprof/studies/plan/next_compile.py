"""Choose what a plan compiles next: the fastest candidate that is predicted to fit the budget."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

from memprof.studies.plan.candidates import Candidate, best_within, keeps_results
from memprof.studies.plan.choice import Choice
from memprof.studies.plan.plan import CHOSEN, NOTHING_KEPT, PlanPoint
from memprof.studies.plan.steps import ChangedStep
from memprof.studies.plan.times import StepTime

MARGIN = 0.005  # of the budget: allowance for a footprint above its prediction
DOUBT = 0.03  # of the budget: a prediction may be too high by this much; a compile decides
_CLOSE = 0.01  # of the budget: if less is left, another compile must be worthwhile
_WORTHWHILE = 0.1  # of the time that checkpoints add: a worthwhile compile saves this much
_MANY_BLOCKS = 4
_HALVINGS = 3  # bisection steps between the sizes of two candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCompile:
    """What a plan knows when it chooses the next compile.

    Attributes:
        points: every compile so far, including those of changes to the step.
        candidates: the choices to consider.
        time: the estimate of the step's time.
        is_last: whether no compile may follow.
        may_leave_last: whether the last layers may be left without a checkpoint.
    """

    step: ChangedStep
    points: Sequence[PlanPoint]
    candidates: Sequence[Candidate]
    time: StepTime
    budget_bytes: int
    is_last: bool
    may_leave_last: bool

    def candidate(self) -> Candidate | None:
        """Return the fastest candidate that is predicted to fit, or may fit; None if no compile is worthwhile."""
        if self.is_last and not keeps_results(self.points, self.budget_bytes):
            return self._smallest(self._faster(), doubt=0.0)
        return self._fastest_within(1 - MARGIN) or self._fastest_within(1 + DOUBT)

    def _fastest_within(self, share: float) -> Candidate | None:
        """Return the fastest candidate that is predicted to take at most a share of the budget."""
        found = self._fastest_uniform(share)
        if found is not None and self._is_close():
            base, fewest = self.time.base_seconds, self._fewest_seconds()
            is_worthwhile = self._seconds(found.choice) - base <= (1 - _WORTHWHILE) * (fewest - base)
            found = found if is_worthwhile else None
        if not self.may_leave_last:
            return found
        fastest = min(self._fewest_seconds(), inf if found is None else self._seconds(found.choice))
        is_known = any(each.checkpoints and each.checkpoints.num_first for each in self.step.points)
        return self._fastest_without_last(int((share if is_known else 1 - DOUBT) * self.budget_bytes), fastest) or found

    def _is_close(self) -> bool:
        """Whether the best point within the budget keeps results and leaves little of the budget unused."""
        best = best_within(self.points, self.budget_bytes)
        is_full = best is not None and self.budget_bytes - best.footprint_bytes <= _CLOSE * self.budget_bytes
        return is_full and keeps_results(self.points, self.budget_bytes)

    def _faster(self) -> list[Candidate]:
        """Return the candidates that are estimated to be faster than all compiles within the budget, fastest first.

        If storing takes time, candidates that are no faster than a smaller one are dropped, unless no compile fits yet:
        keeping more may take less memory.
        """
        limit, smallest = self._fewest_seconds(), inf
        drops_dominated = bool(self.time.seconds_per_byte) and limit < inf
        found: list[Candidate] = []
        for each in sorted(self.candidates, key=lambda each: (self._seconds(each.choice), each.choice.size_bytes)):
            if self._seconds(each.choice) < limit and (each.choice.size_bytes < smallest or not drops_dominated):
                found.append(each)
                smallest = min(smallest, each.choice.size_bytes)
        return found

    def _smallest(self, candidates: Sequence[Candidate], *, doubt: float) -> Candidate | None:
        """Return the fastest candidate whose prediction exceeds the smallest one by at most a share."""
        unknown = [each for each in candidates if self.step.known(each.choice) is None]
        predictions = [self.step.predicted(each.choice.checkpoints) for each in unknown]
        smallest = min(predictions, default=0)
        near = (each for each, size in zip(unknown, predictions, strict=True) if size <= (1 + doubt) * smallest)
        return next(near, None)

    def _fastest_without_last(self, most: int, seconds: float) -> Candidate | None:
        """Return the fastest candidate that leaves the last blocks without a checkpoint and is predicted to fit.

        Args:
            most: limit of its footprint, in bytes.
            seconds: time that it must beat.
        """
        found, unchanged_seconds = None, self.time.of_point(self.step.points[0])
        for each in (candidate for candidate in self.candidates if self._seconds(candidate.choice) > unchanged_seconds):
            # The fewest blocks without a checkpoint that make it faster; most candidates are too large with these.
            uniform_seconds = self._seconds(each.choice)
            share = max(uniform_seconds - seconds, 0.0) / (uniform_seconds - unchanged_seconds)
            fewest = floor(self.step.placement.num_blocks * min(share, 1.0)) + 1
            number = self._max_without_checkpoint(each.choice, fewest, most)
            choice = self.step.without_last(each.choice, number)
            if number >= fewest and self.step.known(choice) is None:
                found = Candidate(name=CHOSEN, choice=choice)
                seconds = (
                    uniform_seconds - (uniform_seconds - unchanged_seconds) * number / self.step.placement.num_blocks
                )
        return found

    def _max_without_checkpoint(self, choice: Choice, fewest: int, most: int) -> int:
        """Return how many last blocks can do without a checkpoint: `fewest - 1` if `fewest` is too many.

        The number is bisected, because each block without a checkpoint takes more memory.
        """

        def is_too_large(number: int) -> bool:
            mixed = self.step.without_last(choice, number)
            known = self.step.known(mixed)
            return (self.step.predicted(mixed.checkpoints) if known is None else known.footprint_bytes) > most

        if fewest >= self.step.placement.num_blocks or is_too_large(fewest):
            return fewest - 1
        return fewest + bisect_left(range(fewest + 1, self.step.placement.num_blocks), True, key=is_too_large)

    def _fastest_uniform(self, share: float) -> Candidate | None:
        """Return the fastest candidate with the same choice for all blocks that is predicted to fit.

        If no compile that keeps results fits, the smallest candidate may be returned: values recomputed together are
        live together, so keeping more may use less memory than keeping nothing.
        """
        most, faster = int(share * self.budget_bytes), self._faster()

        def fits(place: int) -> bool:
            is_compiled = self.step.known(faster[place].choice) is not None  # and was too large
            return not is_compiled and self.step.predicted(faster[place].choice.checkpoints) <= most

        places = range(len(faster))
        if any(block.count >= _MANY_BLOCKS for block in self.step.blocks):  # then slower choices are smaller
            place = bisect_left(places, True, key=fits)
        else:
            place = next(filter(fits, places), len(faster))
        above = faster[place - 1].choice if place else None
        if place < len(faster):
            return self._enlarged(faster[place], faster[place].choice, above, most)
        best = best_within(self.points, self.budget_bytes)
        if best is None or (best.name == NOTHING_KEPT and share > 1):
            return self._smallest(faster, doubt=DOUBT)
        if best.checkpoints is None or best.checkpoints.num_first is not None:
            return None
        return self._enlarged(None, self.step.choice(best.checkpoints), above, most)

    def _enlarged(self, found: Candidate | None, low: Choice, above: Choice | None, most: int) -> Candidate | None:
        """Return a candidate that is faster than `low` and predicted to fit; `found` if there is none.

        Bisection finds the largest below the size of `above`, which is predicted not to fit.
        """
        if above is None or above.size_bytes <= low.size_bytes:
            return found
        small, large = low.size_bytes, above.size_bytes
        for _ in range(_HALVINGS):
            middle = (small + large) // 2
            choice = self.step.fastest(middle, self.time)
            known = self.step.known(choice)
            size = self.step.predicted(choice.checkpoints) if known is None else known.footprint_bytes
            if size > most:
                large = middle
                continue
            small = middle
            if known is None and self._seconds(choice) < self._seconds(low):
                found, low = Candidate(name=CHOSEN, choice=choice), choice
        return found

    def _seconds(self, choice: Choice) -> float:
        return self.time.of(choice)

    def _fewest_seconds(self) -> float:
        return self.time.fewest(self.points, self.budget_bytes)
