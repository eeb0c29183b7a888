"""The dependencies between operations and their pieces of memory: the input of `any_order.py`.

A **piece** is a part of the temp block during a span of time, with all values that replace each other in place.
Arguments, results and constants keep their memory for the whole step in any order, so their pieces have 0 bytes.

An operation needs the makers of its operands. Instructions that only pass values on (tuples, bitcasts, optimization
barriers) are not operations here: a barrier constrains XLA's order, not the data. The operations of a loop's body are
inlined between the step that begins the loop and the step that ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from memprof.analysis.attribution.aliases import called_computations
from memprof.analysis.attribution.op_names import BARRIER
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.liveness import Lifetime
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.hlo.program_order import ProgramOrder
from memprof.analysis.memory.device_traces import DeviceTrace
from memprof.analysis.scheduling.any_order import Operations, other_orders

_PASSES_ON = frozenset({"get-tuple-element", "tuple", "bitcast", "optimization-barrier", "add-dependency", "domain"})


class Step(Struct, frozen=True, kw_only=True):
    """One operation. An operation that runs others (a loop, a branch, a call) has two steps: beginning and end.

    Attributes:
        position: position in program order; for a beginning, the position of the first inner operation.
        within: the number of the step that begins the enclosing operation; -1 at top level.
        since: the number of the first step of the enclosing computation.
        begun: for an end, the number of the step of the beginning; -1 for other steps.
    """

    instruction: Instruction
    position: int
    within: int
    since: int
    begun: int = -1
    is_beginning: bool = False


class MemoryGraph:
    """See the module's docstring.

    Attributes:
        steps: the steps in XLA's order. Instructions that only pass values on are included only in loops and branches.
        operations: the steps in the form of `any_order.py`: each needs exactly the makers of its operands.
        piece_of: the piece of each live range of the traces, one trace after another.
        fenced: the pieces that an optimization barrier passes on.
    """

    def __init__(
        self, program: Program, table: BufferTable, traces: Sequence[DeviceTrace], values: Values, order: ProgramOrder
    ) -> None:
        """Args: traces: all traces of the device."""
        self.steps = _steps(program, order)
        self._ends = {step.begun: number for number, step in enumerate(self.steps) if step.begun >= 0}
        pieces, sizes, self.piece_of = _pieces(table, traces, values, order)
        barriers = {group for each in order.instructions if _is_barrier(each) for group in values.groups_of(each)}
        self.fenced = frozenset(piece.number for group in barriers for piece in pieces.get(group, ()))
        self._writes: list[set[int]] = []
        needs: list[set[int]] = []
        touches: list[Sequence[int]] = []
        maker: dict[int, int] = {}  # the last step that has made each group
        for number, step in enumerate(self.steps):
            reads, makes = _groups(step, program, values)
            needed = {self._outside_siblings(step, maker[group]) for group in reads if group in maker}
            if step.within >= 0 and max(needed, default=-1) < step.within:
                needed.add(step.within)
            needs.append(needed)
            written, read = (
                {
                    piece.number
                    for group in groups
                    if group in pieces
                    for piece in pieces[group]
                    if piece.first <= step.position <= piece.last
                }
                for groups in (makes, reads)
            )
            touches.append(tuple(written | read))
            self._writes.append(written)
            maker.update((group, number) for group in makes)
        for number, step in enumerate(self.steps):
            if step.within >= 0:
                needs[self._ends[step.within]].add(number)
        for begun, end in self._ends.items():
            needs[end].add(begun)
        self.operations = Operations(needs=[sorted(needed) for needed in needs], touches=touches, sizes=sizes)

    def _outside_siblings(self, step: Step, maker: int) -> int:
        """Replace a maker in a sibling branch by the beginning: it precedes the step, but does not run before it."""
        while step.within >= 0:
            if step.within < maker < step.since:
                maker = step.within
            step = self.steps[step.within]
        return maker

    def orders(self) -> Iterator[list[int]]:
        """Yield other orders of the steps, in which values that share memory still follow each other.

        Each loop and each branch runs as a whole; inside them, operations are moved too.
        """
        needs = self._needs_within()
        touches: dict[int, set[int]] = defaultdict(set)
        levels: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            if not step.is_beginning:
                levels[step.within].append(number)
                touches[number].update(self.operations.touches[number])
                if step.within >= 0:
                    touches[self._ends[step.within]] |= touches[number]
        found: dict[int, dict[int, list[int]]] = defaultdict(dict)
        for within, members in levels.items():
            local = {number: index for index, number in enumerate(members)}
            operations = Operations(
                needs=[[local[other] for other in needs[number]] for number in members],
                touches=[tuple(touches[number]) for number in members],
                sizes=self.operations.sizes,
            )
            for which, order in enumerate(other_orders(operations)):
                found[which][within] = [members[index] for index in order]
        for orders in found.values():
            yield list(self._in_line(orders))

    def _needs_within(self) -> dict[int, set[int]]:
        """Return the steps of the same computation that each step needs, for its data and for its memory."""
        needs: dict[int, set[int]] = defaultdict(set)
        for number, needed in enumerate(self.operations.needs):
            for other in needed:
                self._lift(number, other, needs)
        written: dict[int, int] = {}
        read: dict[int, list[int]] = defaultdict(list)
        for number, touched in enumerate(self.operations.touches):
            for piece in touched:
                if piece in written:
                    self._lift(number, written[piece], needs)
                if piece in self._writes[number]:
                    for reader in read.pop(piece, ()):
                        self._lift(number, reader, needs)
                    written[piece] = number
                else:
                    read[piece].append(number)
        return needs

    def _lift(self, number: int, other: int, needs: dict[int, set[int]]) -> None:
        """Record that one step follows another, between their enclosing operations in the same computation."""
        number, other = self._ends.get(number, number), self._ends.get(other, other)
        while self.steps[number].within != self.steps[other].within:
            if self.steps[number].within > self.steps[other].within:
                number = self._ends[self.steps[number].within]
            else:
                other = self._ends[self.steps[other].within]
        if other < number:
            needs[number].add(other)

    def _in_line(self, orders: dict[int, list[int]]) -> Iterator[int]:
        stack = [iter(orders.get(-1, ()))]
        waiting: list[int] = []
        while stack:
            for number in stack[-1]:
                begun = self.steps[number].begun
                if begun >= 0:
                    yield begun
                    waiting.append(number)
                    stack.append(iter(orders.get(begun, ())))
                    break
                yield number
            else:
                stack.pop()
                if waiting:
                    yield waiting.pop()


class _Piece(Struct, frozen=True):
    """The part of a piece's time in which one group occupies it: between two positions in program order."""

    number: int
    first: int
    last: int


def _pieces(
    table: BufferTable, traces: Sequence[DeviceTrace], values: Values, order: ProgramOrder
) -> tuple[dict[int, list[_Piece]], list[int], list[int]]:
    """Return the pieces of each group, the bytes of all pieces, and the piece of each live range."""
    pieces: dict[int, list[_Piece]] = defaultdict(list)
    sizes: list[int] = []
    piece_of: list[int] = []
    for trace in traces:
        first, last = order.event_positions(trace.liveness.trace), order.last_positions(trace.liveness.trace)
        by_canonical: dict[int, list[Lifetime]] = defaultdict(list)
        for life in sorted(trace.liveness.lifetimes, key=lambda life: life.start):
            by_canonical[life.canonical_id].append(life)
        piece_at: dict[int, int] = {}  # by the event at which a value takes the memory
        for canonical, lives in by_canonical.items():
            begins = {first[life.start] for life in lives}
            reached = -2
            for life in lives:
                begin, end = first[life.start], last[life.end]
                if begin > reached + 1:
                    sizes.append(table.logical_buffers[canonical].size_bytes)
                reached = max(reached, end)
                piece_at[life.start] = len(sizes) - 1
                group = values.group_of(table.logical_buffers[life.buffer_id])
                if group is not None:
                    # In the trace, a value that is overwritten in place dies before the operation that reads it last.
                    pieces[group].append(_Piece(len(sizes) - 1, begin, end + (end + 1 in begins)))
        piece_of.extend(piece_at[live.start] for live in trace.liveness.live_ranges)
    traced = {trace.liveness.trace.allocation for trace in traces}
    for allocation in table.allocations:
        if allocation.index not in traced and allocation.is_on_device and not allocation.is_constant:
            for buffer_id in allocation.logical_buffers:
                group = values.group_of(table.logical_buffers[buffer_id])
                if group is not None:
                    pieces[group].append(_Piece(len(sizes), 0, order.length))
            sizes.append(0)
    return pieces, sizes, piece_of


def _is_barrier(instruction: Instruction) -> bool:
    """Whether an instruction is or was an optimization barrier.

    XLA removes barriers after it has ordered the operations; the instructions that replace them keep their name.
    """
    return instruction.opcode in _PASSES_ON and instruction.op_name.endswith(BARRIER)


def _groups(step: Step, program: Program, values: Values) -> tuple[set[int], tuple[int, ...]]:
    """Return the groups that a step reads, and the groups that it makes."""
    instruction = step.instruction
    if instruction.opcode in _PASSES_ON or (instruction.opcode == "parameter" and step.within >= 0):
        return set(), ()
    if step.begun >= 0:
        carried = values.groups_of(instruction)
        return set(carried), carried
    reads = set(values.groups_read_by(instruction))
    if step.is_beginning:
        return reads, ()
    if instruction.opcode.endswith("-done"):  # a background operation reads its operands until its end
        reads.update(values.groups_read_by(program.instructions[instruction.operands[0]]))
    return reads, values.groups_of(instruction)


def _steps(program: Program, order: ProgramOrder) -> list[Step]:
    place = {instruction.name: position for position, instruction in enumerate(order.instructions)}
    first = list(range(order.length))  # the position of the first operation that each one runs
    computation: dict[str, int] = {}
    begins: dict[int, list[int]] = defaultdict(list)
    for position, instruction in enumerate(order.instructions):
        if instruction.opcode == "fusion":
            continue
        for number, called in enumerate(called_computations(program, instruction)):
            names = [program.instructions[index].name for index in called.instructions]
            first[position] = min(first[position], first[place[names[0]]])
            computation.update(dict.fromkeys(names, number))
        if first[position] < position:
            begins[first[position]].append(position)
    steps: list[Step] = []
    stack: list[tuple[int, int]] = []  # enclosing operations: the number of the beginning, and the position of the end
    since: dict[tuple[int, int], int] = {}  # the first step of each computation

    def add(instruction: Instruction, position: int, *, is_beginning: bool = False, begun: int = -1) -> None:
        within = stack[-1][0] if stack else -1
        key = (within, computation.get(instruction.name, 0))
        steps.append(
            Step(
                instruction=instruction,
                position=position,
                within=within,
                since=since.setdefault(key, len(steps)),
                begun=begun,
                is_beginning=is_beginning,
            )
        )

    for position in range(order.length):
        for end in sorted(begins.get(position, ()), reverse=True):
            add(order.instructions[end], position, is_beginning=True)
            stack.append((len(steps) - 1, end))
        if not stack and order.instructions[position].opcode in _PASSES_ON:
            continue  # half of a large program; inside a loop, they take part in the order of its body
        begun = stack.pop()[0] if stack and stack[-1][1] == position else -1
        add(order.instructions[position], position, begun=begun)
    return steps
