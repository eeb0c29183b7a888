"""Live bytes over program order, by category.

A timeline keeps changes, not samples: at each position of the schedule some bytes of a category come alive or die. What
is live for the whole step (arguments, outputs, constants) is the base. A picture of any width is made with `slices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from memprof.analysis.records.categories import Category, Phase


class LiveChange(Struct, frozen=True, gc=False):
    """`delta_bytes` of `category` come alive (positive) or die (negative) at `position`."""

    position: int
    category: Category
    delta_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """Positions `start` to `end` (inclusive) belong to one phase of the step."""

    phase: Phase
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSpan:
    """At positions `start` to `end` (inclusive) nothing works but the module `path`."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSlice:
    """The moment with the most live bytes within one slice of the program.

    Attributes:
        position: where in program order that moment is.
        categories: live bytes by category at that moment; they add up to `live_bytes`.
    """

    position: int
    phase: Phase
    categories: Mapping[Category, int]

    @property
    def live_bytes(self) -> int:
        return sum(self.categories.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """See the module's docstring.

    Attributes:
        num_positions: length of the schedule (positions run from 0).
        base: bytes by category that are live from beginning to end.
        changes: in program order; deaths come before births at the same position only where XLA ordered them so.
        temp_changes: for each temp buffer of the report, in their order: which of the changes it comes alive and dies
            with. Several changes can share one position: it is live from the first up to, not including, the second.
        phases: consecutive spans that cover the schedule.
        peak_position: where the live bytes are highest for the first time.
        modules: spans in program order, with gaps where no module is at work.
    """

    num_positions: int
    base: Mapping[Category, int]
    changes: tuple[LiveChange, ...]
    phases: tuple[PhaseSpan, ...]
    peak_position: int
    modules: tuple[ModuleSpan, ...] = ()
    temp_changes: tuple[tuple[int, int], ...] = ()

    def slices(self, num_slices: int) -> tuple[TimelineSlice, ...]:
        """Cut the program into slices of equal length and keep each slice's highest moment.

        Args:
            num_slices: how many slices at most; fewer come back when the program is shorter.

        Returns:
            The slices in program order. The highest of them shows the live peak, whatever the number of slices.
        """
        num_slices = min(num_slices, self.num_positions)
        live = dict(self.base)
        total = sum(live.values())
        slices: list[TimelineSlice] = []
        index = 0
        for number in range(num_slices):
            stop = (number + 1) * self.num_positions // num_slices
            best_total, best_position, best = total, number * self.num_positions // num_slices, dict(live)
            while index < len(self.changes) and self.changes[index].position < stop:
                change = self.changes[index]
                live[change.category] = live.get(change.category, 0) + change.delta_bytes
                total += change.delta_bytes
                index += 1
                if total > best_total:
                    best_total, best_position, best = total, change.position, dict(live)
            categories = {category: size for category, size in best.items() if size}
            slices.append(
                TimelineSlice(position=best_position, phase=self.phase_at(best_position), categories=categories)
            )
        return tuple(slices)

    def phase_at(self, position: int) -> Phase:
        """The phase of the span that holds `position`."""
        for span in self.phases:
            if span.start <= position <= span.end:
                return span.phase
        return Phase.NONE
