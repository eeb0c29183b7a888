"""Live bytes over program order, by category.

A timeline stores changes, not samples: at each position of the schedule, bytes of a category are allocated or freed.
Values that are live for the whole step (arguments, outputs, constants) are the base. `slices` reduces the timeline to
any width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from memprof.analysis.records.categories import Category, Phase


class LiveChange(Struct, frozen=True, gc=False):
    """`delta_bytes` of `category` are allocated (positive) or freed (negative) at `position`."""

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
    """Positions `start` to `end` (inclusive) belong to the module `path`."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSlice:
    """The moment with the most live bytes within one slice of the program.

    Attributes:
        position: the moment's position in program order.
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
        num_positions: the length of the schedule (positions start at 0).
        base: bytes by category that are live from beginning to end.
        changes: the changes in program order. At one position, frees precede allocations only if XLA ordered them so.
        temp_changes: for each temp buffer of the report, in their order, the changes that allocate and free it. Several
            changes can share one position, so the buffer is live from the first change up to, but not including, the
            second.
        phases: consecutive spans that cover the schedule.
        peak_position: the first position with the maximum of the live bytes.
        modules: spans in program order, with gaps where no module runs.
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
            num_slices: the maximum number of slices; a shorter program gives fewer.

        Returns:
            The slices in program order. The highest of them shows the live peak, for any number of slices.
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
        """Return the phase of the span that contains `position`."""
        for span in self.phases:
            if span.start <= position <= span.end:
                return span.phase
        return Phase.NONE
