"""Program order: positions in the schedule.

A position in program order is an instruction's index in the sequence of all instructions that the program runs, with
the bodies of loops and branches inlined. Instructions inside fusions have no position.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from memprof.analysis.hlo.buffer_table import EventKind, HeapTrace
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan


class ProgramOrder:
    """The instructions that run, in order, and their indices in the program."""

    def __init__(self, program: Program, order: tuple[int, ...]) -> None:
        """Args: order: all instructions, including fused ones, definitions before uses (`aliases.AliasSets.order`)."""
        instructions, computations = program.instructions, program.computations
        fused: set[int] = set()
        for index in order:
            if instructions[index].opcode == "fusion":
                for called in instructions[index].called:
                    fused.update(computations[called].instructions)
        self.indices = tuple([index for index in order if index not in fused])
        self.instructions = tuple([instructions[index] for index in self.indices])
        self._position = {instruction.name: place for place, instruction in enumerate(self.instructions)}

    @property
    def length(self) -> int:
        return len(self.instructions)

    def event_positions(self, trace: HeapTrace) -> tuple[int, ...]:
        """Return the position of each event of a trace, and of its end.

        XLA writes the defining instruction into every event, even into FREE. So an ALLOC or SHARE_WITH shows the
        current position of the program, and a FREE happens at the last known position.
        """
        positions = []
        current = 0
        for event in trace.events:
            if event.kind is not EventKind.FREE:
                current = max(current, self._position.get(event.instruction_name, current))
            positions.append(current)
        return (*positions, self.length - 1)

    def last_positions(self, trace: HeapTrace) -> tuple[int, ...]:
        """Return, for each event of a trace and its end, the last position at which the freed value can still be read.

        A trace lists a FREE before the next allocation; the last read can be at any position in between.
        """
        positions = list(self.event_positions(trace))
        following = self.length
        for place in reversed(range(len(trace.events))):
            if trace.events[place].kind is EventKind.FREE:
                positions[place] = max(positions[place], following - 1)
            else:
                following = positions[place]
        return tuple(positions)

    def num_before(self, phases: frozenset[Phase], phase_of: Callable[[Instruction], Phase]) -> tuple[int, ...]:
        """Return, for each position and the end, how many instructions before it do work in one of the phases."""
        works = (i.opcode not in _NO_WORK and phase_of(i) in phases for i in self.instructions)
        return (0, *accumulate(works))

    def phase_spans(self, phase_of: Callable[[Instruction], Phase]) -> tuple[PhaseSpan, ...]:
        """Return consecutive spans that cover the schedule; an instruction without a phase joins the span around it."""
        spans: list[PhaseSpan] = []
        for place, instruction in enumerate(self.instructions):
            if instruction.opcode in _NO_WORK:
                continue
            phase = phase_of(instruction)
            if phase is Phase.NONE or (spans and spans[-1].phase is phase):
                continue
            if spans:
                spans[-1] = PhaseSpan(phase=spans[-1].phase, start=spans[-1].start, end=place - 1)
            spans.append(PhaseSpan(phase=phase, start=place if spans else 0, end=place))
        if spans:
            spans[-1] = PhaseSpan(phase=spans[-1].phase, start=spans[-1].start, end=self.length - 1)
        return tuple(spans)

    def module_spans(self, module_of: Callable[[Instruction], str]) -> tuple[ModuleSpan, ...]:
        """Return the spans of the schedule in which one module runs; instructions without a module are in no span."""
        spans: list[ModuleSpan] = []
        current, start, end = "", 0, 0
        for place, instruction in enumerate(self.instructions):
            if instruction.opcode in _NO_WORK:
                continue
            module = module_of(instruction)
            if module != current:
                if current:
                    spans.append(ModuleSpan(path=current, start=start, end=end))
                current, start = module, place
            end = place
        if current:
            spans.append(ModuleSpan(path=current, start=start, end=end))
        return tuple(spans)


_NO_WORK = frozenset({"parameter", "constant", "tuple", "bitcast", "while", "conditional", "call"})
