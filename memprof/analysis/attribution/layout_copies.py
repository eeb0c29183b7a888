"""Operations of the compiled program that only change the layout of an array, and the operations that need the change.

The compiler assigns a layout to each array. If the maker and a reader of an array need different layouts, it inserts a
copy. A transposition or reshape that the user wrote is a copy too, unless the layouts make it free. Such a copy
computes nothing, but costs memory and bandwidth.

Only operations that run by themselves count: copies between different layouts, transpositions, reshapes of tiled
arrays, and fusions of only such operations. A transposition that is fused with a computation costs no array.

The search for the two neighbours skips operations that only pass the array on: tuples, loops, other copies. Matrix
products need a certain layout most often, so a reader with a matrix product is preferred.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from memprof.analysis.attribution.aliases import ALIASING, runs
from memprof.analysis.attribution.sources import Sources
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.program import Instruction, Program, ResultLeaf
from memprof.analysis.hlo.program_order import ProgramOrder
from memprof.analysis.records.layout_copy import CopyKind, LayoutCopy, Neighbour

_MOVES = frozenset({"copy", "transpose", "reshape"})
# The opcodes in a fusion of only such operations.
_MOVES_OR_FREE = _MOVES | {"parameter", "bitcast", "tuple", "get-tuple-element"}
_BACKGROUND_COPY = "copy-start"
_UNKNOWN = Neighbour(name="", op="", source="", role="unknown")


def layout_copies(
    program: Program, table: BufferTable, values: Values, order: ProgramOrder, sources: Sources, at_peak: frozenset[str]
) -> tuple[LayoutCopy, ...]:
    """Return the layout copies of a program, largest bytes written per step first.

    Args:
        at_peak: the names of the instructions whose results are live at the peak.
    """
    found = {index: kind for index in order.indices if (kind := _kind(program, program.instructions[index]))}
    if not found:
        return ()
    neighbours = _Neighbours(program, values, order, sources)
    times = {instruction.name: (number, is_known) for instruction, number, is_known in runs(program)}
    stored = {(b.instruction, b.shape_index): b for b in table.logical_buffers.values() if b.instruction in found}
    copies = []
    for index, kind in found.items():
        instruction = program.instructions[index]
        old, new = _old_and_new(program, instruction)
        buffer = stored.get((index, new.shape_index))
        num_runs, is_known = times.get(instruction.name, (1, False))
        copies.append(
            LayoutCopy(
                name=instruction.name,
                kind=kind,
                dtype=new.dtype,
                old_dtype=old.dtype,
                shape=new.dimensions,
                layout=new.layout,
                old_shape=old.dimensions,
                old_layout=old.layout,
                size_bytes=new.size_bytes if buffer is None else buffer.size_bytes,
                space="" if buffer is None else table.allocations[buffer.allocation].space,
                num_runs=num_runs,
                is_at_least=not is_known,
                is_at_peak=instruction.name in at_peak,
                op=instruction.op_name,
                module=values.module_of(instruction),
                source=sources.lines(instruction).user,
                producer=neighbours.producer(index),
                consumer=neighbours.consumer(index),
            )
        )
    return tuple(sorted(copies, key=lambda copy: -copy.step_bytes))


def _kind(program: Program, instruction: Instruction) -> CopyKind | None:
    """Return the kind of an operation that only changes a layout; None for any other operation."""
    opcode = instruction.opcode
    if opcode == "fusion":
        if len(instruction.shape.leaves) != 1 or not _passes_on(program, instruction):
            return None
        moves = (each for each in _inside(program, instruction) if each.opcode in _MOVES)
        return next(filter(None, (_kind(program, each) for each in moves)), None)
    if opcode not in _MOVES and opcode != _BACKGROUND_COPY:
        return None
    if not _has_leaves(program, instruction):
        return None
    old, new = _old_and_new(program, instruction)
    if new.num_elements <= 1:
        return None
    if opcode == "transpose":
        return "transpose"
    if opcode == "reshape":  # without tiles it is free or fused
        return "reshape" if "T" in new.layout else None
    if old.dtype != new.dtype:  # a TPU's copy may also convert, and tiles depend on the dtype
        return "copy" if _order(old) != _order(new) else None
    return "copy" if old.layout != new.layout else None


def _order(leaf: ResultLeaf) -> str:
    """Return the order of the dimensions in a layout, without its tiles."""
    return leaf.layout.strip("{}").partition(":")[0]


def _has_leaves(program: Program, instruction: Instruction) -> bool:
    operands = instruction.operands
    return bool(operands and program.instructions[operands[0]].shape.leaves and instruction.shape.leaves)


def _old_and_new(program: Program, instruction: Instruction) -> tuple[ResultLeaf, ResultLeaf]:
    return program.instructions[instruction.operands[0]].shape.leaves[0], instruction.shape.leaves[0]


def _inside(program: Program, fusion: Instruction) -> Iterator[Instruction]:
    """Yield the operations of a fusion and its inner fusions, without recursion: a damaged program can nest deeply."""
    waiting = [iter(program.computations[fusion.called[0]].instructions)]
    while waiting:
        index = next(waiting[-1], None)
        if index is None:
            waiting.pop()
            continue
        instruction = program.instructions[index]
        if instruction.opcode == "fusion":
            waiting.append(iter(program.computations[instruction.called[0]].instructions))
        else:
            yield instruction


class _Neighbours:
    """Finds the operations before and after a copy, past operations that only pass an array on."""

    def __init__(self, program: Program, values: Values, order: ProgramOrder, sources: Sources) -> None:
        self._program, self._values, self._sources = program, values, sources
        self._place = {index: place for place, index in enumerate(order.indices)}
        self._makers: dict[int, list[int]] = defaultdict(list)  # by group, in program order
        self._readers: dict[int, list[int]] = defaultdict(list)
        self._passes_on: set[int] = set()
        self._entry = frozenset(program.entry.instructions)
        self._computation = {
            index: number for number, each in enumerate(program.computations) for index in each.instructions
        }
        for index in order.indices:
            instruction = program.instructions[index]
            if instruction.opcode in ALIASING and instruction.opcode != "fusion":
                continue
            if _passes_on(program, instruction):
                self._passes_on.add(index)
            for group in set(values.groups_of(instruction)):
                self._makers[group].append(index)
            for group in set(values.groups_read_by(instruction)):
                self._readers[group].append(index)

    def producer(self, index: int) -> Neighbour:
        """Return the last operation before a copy that makes its array, in a loop that of the previous iteration."""
        groups = list(self._values.groups_read_by(self._program.instructions[index]))
        found, seen = self._reached(index, groups, self._makers, self._values.groups_read_by)
        near = self._near(index, found)
        before = [each for each in near if self._place[each] < self._place[index]]
        argument = next(filter(None, map(self._values.argument_of, seen)), None)
        if argument is not None and not before and index in self._entry:
            return Neighbour(name="", op=argument.path, source="", role="argument")
        maker = max(before or near, key=self._place.__getitem__, default=None)
        if maker is None:
            return _UNKNOWN if argument is None else Neighbour(name="", op=argument.path, source="", role="argument")
        instruction = self._program.instructions[maker]
        inner = self._product(instruction) or self._values.maker_in(maker, found[maker])
        return self._neighbour(instruction, inner)

    def consumer(self, index: int) -> Neighbour:
        """Return the next operation after a copy that reads it, preferably one with a matrix product."""
        groups = list(self._values.groups_of(self._program.instructions[index]))
        found, seen = self._reached(index, groups, self._readers, self._values.groups_of)
        products = [each for each in found if self._product(self._program.instructions[each]) is not None]
        readers = self._near(index, products or found)
        after = [each for each in readers if self._place[each] > self._place[index]]
        if not readers and not self._values.result_groups.isdisjoint(seen):
            return Neighbour(name="", op="", source="", role="result")
        reader = min(after or readers, key=self._place.__getitem__, default=None)
        if reader is None:
            return _UNKNOWN
        instruction = self._program.instructions[reader]
        return self._neighbour(instruction, self._product(instruction) or instruction)

    def _near(self, index: int, found: Iterable[int]) -> list[int]:
        """Keep the operations in the copy's own computation, if any: a loop carries an array between iterations."""
        found, own = list(found), self._computation[index]
        return [each for each in found if self._computation[each] == own] or found

    def _reached(
        self,
        index: int,
        groups: list[int],
        neighbours: dict[int, list[int]],
        beyond: Callable[[Instruction], Iterable[int]],
    ) -> tuple[dict[int, int], list[int]]:
        """Return the operations adjacent to some groups, each with its group, and all groups on the way to them.

        Args:
            beyond: the groups on the other side of an operation that passes an array on.
        """
        found: dict[int, int] = {}
        seen = dict.fromkeys(groups)
        for group in groups:  # grows during the loop
            for each in neighbours.get(group, ()):
                if each == index:
                    continue
                if each not in self._passes_on:
                    found.setdefault(each, group)
                    continue
                for other in beyond(self._program.instructions[each]):
                    if other not in seen:
                        seen[other] = None
                        groups.append(other)
        return found, list(seen)

    def _product(self, instruction: Instruction) -> Instruction | None:
        """Return the matrix product of an operation or inside a fusion, if any."""
        if instruction.opcode == "fusion":
            return next((each for each in _inside(self._program, instruction) if each.product is not None), None)
        return instruction if instruction.product is not None else None

    def _neighbour(self, instruction: Instruction, inner: Instruction) -> Neighbour:
        """Args: inner: its most informative inner operation."""
        if not inner.op_name and instruction.opcode == "fusion":
            named = [each for each in _inside(self._program, instruction) if each.op_name]
            inner = instruction if instruction.op_name or not named else named[-1]
        return Neighbour(
            name=instruction.name,
            op=inner.op_name,
            source=self._sources.lines(inner).user,
            role="constant" if instruction.opcode == "constant" else "operation",
        )


def _passes_on(program: Program, instruction: Instruction) -> bool:
    """Whether an operation only moves one array, or only changes its layout."""
    if instruction.opcode == "fusion":
        is_movement = all(each.opcode in _MOVES_OR_FREE for each in _inside(program, instruction))
        return is_movement and _has_leaves(program, instruction)
    return instruction.opcode in _MOVES or instruction.opcode == _BACKGROUND_COPY
