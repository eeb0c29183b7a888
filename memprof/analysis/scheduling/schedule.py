"""Why a buffer is still live at the peak: the operations that it waits for, and whether only XLA's order keeps it.

The operation at the peak divides all others into three sets: its ancestors (the operations that it needs), its
descendants (the operations that need it), and independent operations, which may run before or after it. A buffer is
live at this moment in every order if the operation itself works on it, or if both an ancestor and a descendant do. Of
the other buffers, a buffer is **waiting** if only independent operations have yet to read it: they could have run
before. A buffer is **early** if no ancestor has touched it: it could have been made afterwards.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby

from memprof.analysis.attribution.sources import Sources
from memprof.analysis.attribution.values import Values
from memprof.analysis.memory.accounting import Memory
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Schedule
from memprof.analysis.records.why_live import Link, Operation, Reason, WhyLive
from memprof.analysis.scheduling.any_order import lower_bound_bytes, peak_bytes
from memprof.analysis.scheduling.memory_graph import MemoryGraph

_MIN_NOTABLE_SHARE = 0.01  # of the footprint; if the bound is lower than the peak by more, other orders are tried


class PeakOrder:
    """The operations of a program around its peak, computed on demand."""

    def __init__(
        self, make_graph: Callable[[], MemoryGraph], memory: Memory, fenced_values: Mapping[str, Sequence[str]]
    ) -> None:
        """Args: fenced_values: see `Capture`."""
        self._make_graph, self._memory, self._fenced_values = make_graph, memory, fenced_values

    @cached_property
    def _graph(self) -> MemoryGraph:
        return self._make_graph()

    @cached_property
    def _peak(self) -> int:
        """The number of the step that runs at the peak."""
        steps = self._graph.steps
        number = bisect_left(steps, self._memory.timeline.peak_position, key=lambda step: step.position)
        while number < len(steps) and steps[number].is_beginning:  # its end follows
            number += 1
        return number

    @cached_property
    def _touching(self) -> dict[int, list[int]]:
        """The steps that work on each piece of memory that is live at the peak."""
        touching: dict[int, list[int]] = {piece: [] for _, piece in self._at_peak()}
        for number, touched in enumerate(self._graph.operations.touches):
            for piece in touched:
                if piece in touching:
                    touching[piece].append(number)
        return touching

    @cached_property
    def schedule(self) -> Schedule:
        """The part of the live peak that is due to the order alone."""
        memory, operations = self._memory, self._graph.operations
        whole_step = sum(buffer.size_bytes for buffer in memory.indefinite)
        bound_bytes = min(whole_step + lower_bound_bytes(operations), memory.live_peak_bytes)
        other_bytes = memory.live_peak_bytes
        if other_bytes - bound_bytes > _MIN_NOTABLE_SHARE * memory.footprint_bytes:
            peaks = [peak_bytes(operations, order) for order in (None, *self._graph.orders())]
            other_bytes -= peaks[0] - min(peaks)
        held = [(number, self._reason(piece)) for number, piece in self._at_peak()]
        waiting, early = (
            [number for number, why in held if why is reason] for reason in (Reason.WAITING, Reason.EARLY)
        )
        return Schedule(
            bound_bytes=bound_bytes,
            other_bytes=other_bytes,
            waiting=tuple(memory.temps[number] for number in waiting),
            early=tuple(memory.temps[number] for number in early),
            is_fenced=any(self._is_fenced(number) for number in waiting),
        )

    def _is_fenced(self, number: int) -> bool:
        """Whether an optimization barrier passes a temp buffer on, according to the program or to the traced step.

        The program of jax 0.10.2 shows the barrier; the program of jax 0.12.0.1 does not.
        """
        if self._graph.piece_of[number] in self._graph.fenced:
            return True
        buffer = self._memory.temps[number]
        return any(
            f"/{line}".endswith(f"/{buffer.source}")  # for a file in a package, `source` is the end of its path
            for op in buffer.op.split(";")
            for name in _endings(op)
            for line in (self._fenced_values.get(name, ()) if buffer.source else ())
        )

    def why(self, values: Values, sources: Sources, buffers: Sequence[LiveBuffer]) -> tuple[WhyLive, ...]:
        """Explain why each of the given buffers is live at the peak."""
        return tuple(self._why(values, sources, buffers))

    def _why(self, values: Values, sources: Sources, buffers: Sequence[LiveBuffer]) -> Iterator[WhyLive]:
        pieces = {id(self._memory.temps[number]): piece for number, piece in self._at_peak()}
        at_peak = self._operation(self._peak, values, sources) if pieces else None
        chains: dict[int, tuple[Link, ...]] = {}  # by the last user, which many buffers share
        for buffer in buffers:
            piece = pieces.get(id(buffer))
            if piece is None:
                yield WhyLive(buffer=buffer, reason=Reason.WHOLE_STEP, at_peak=at_peak)
                continue
            users = [number for number in self._touching[piece] if number > self._peak]
            needed = self._graph.operations.needs[users[-1]] if users else ()
            if users and users[-1] not in chains:
                chains[users[-1]] = tuple(self._chain(users[-1], values))
            yield WhyLive(
                buffer=buffer,
                reason=self._reason(piece),
                at_peak=at_peak,
                users=tuple(self._operation(number, values, sources) for number in users),
                ready=self._graph.steps[needed[-1]].position if needed else -1,
                chain=chains[users[-1]] if users else (),
            )

    def _at_peak(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each temp buffer that is live at the peak, with its piece of memory."""
        for number, (buffer, piece) in enumerate(zip(self._memory.temps, self._graph.piece_of, strict=True)):
            if buffer.at_peak:
                yield number, piece

    @cached_property
    def _reached(self) -> tuple[set[int], set[int]]:
        """The ancestors and the descendants of the operation at the peak, both including itself."""
        needs = self._graph.operations.needs
        needed, needing = {self._peak}, {self._peak}
        for number in range(min(self._peak, len(needs) - 1), -1, -1):
            if number in needed:
                needed.update(needs[number])
        for number in range(self._peak + 1, len(needs)):
            if not needing.isdisjoint(needs[number]):
                needing.add(number)
        return needed, needing

    def _reason(self, piece: int) -> Reason:
        touching, (needed, needing) = self._touching[piece], self._reached
        if self._peak in touching:
            return Reason.ANY_ORDER
        if needing.isdisjoint(touching):
            return Reason.WAITING
        return Reason.EARLY if needed.isdisjoint(touching) else Reason.ANY_ORDER

    def _chain(self, user: int, values: Values) -> Iterator[Link]:
        """Yield the operations between the one at the peak and a user, each the last one that the next one needs."""
        needs, (_, needing) = self._graph.operations.needs, self._reached
        chain: list[int] = []
        while user in needing and user != self._peak:
            user = next(number for number in reversed(needs[user]) if number in needing)
            chain.append(user)
        steps = [self._graph.steps[number] for number in chain[-2::-1]]
        run = [step.instruction for step in steps if not step.is_beginning]
        for (phase, module), members in groupby(run, key=lambda each: (values.phase_of(each), values.module_of(each))):
            first, *others = members
            yield Link(phase=phase, module=module, op=first.op_name or first.name, num_operations=1 + len(others))

    def _operation(self, number: int, values: Values, sources: Sources) -> Operation:
        step = self._graph.steps[number]
        instruction = step.instruction
        return Operation(
            name=instruction.name,
            op=instruction.op_name,
            source=sources.lines(instruction).user,
            module=values.module_of(instruction),
            phase=values.phase_of(instruction),
            position=step.position,
        )


def _endings(op_name: str) -> Iterator[str]:
    """Yield an op name without its first scopes: `jit(step)/jvp(Net)/tanh`, `jvp(Net)/tanh`, `tanh`."""
    parts = op_name.split("/")
    return ("/".join(parts[first:]) for first in range(len(parts)))
