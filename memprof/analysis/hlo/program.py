"""The optimized program as records with dense indices; `program_decoding.py` makes them of XLA's proto.

    program = decode_program(hlo_proto)
    program.instructions[program.entry.root].opcode

Instructions and computations are numbered from 0 in the order of the proto, so that everything downstream keeps its
facts in plain lists. The leaves of an instruction's result (one for an array, several for a tuple) are numbered too:
a **position** is one leaf of one instruction's result, the finest thing that data flows through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from msgspec import Struct

from memprof.analysis.hlo.products import Product
from memprof.analysis.hlo.repeated_bodies import InstructionIds

# The kind of each opcode that connects devices; some run in the background, between a `-start` and a `-done`.
COLLECTIVES = {
    opcode: kind
    for kind in (
        *("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        *("collective-permute", "collective-broadcast"),
    )
    for opcode in (kind, f"{kind}-start")
}
# Of several operands these make results of which each belongs to all operands.
_MIXING = frozenset({"all-to-all", "ragged-all-to-all"})
_ELEMENT_BITS = re.compile(r"(?:bf|f|s|u|c)(\d+)")  # XLA's names of dtypes begin so


HOST_MEMORY = 5  # XLA's memory space of the host (xla/layout.h, Layout::kHostMemorySpace)


class ResultLeaf(Struct, frozen=True):
    """One array in a result: where in the (nested) tuple it sits, XLA's name of its dtype, its dimensions.

    `memory_space` is XLA's number of the memory that it lies in. `padded` are the dimensions filled up to whole tiles;
    empty where nothing is filled up (see `tiling.py`). `layout` is XLA's text of it, `{0,1:T(8,128)}`; empty of an
    array without tiles whose last dimension is stored first.
    """

    shape_index: tuple[int, ...]
    dtype: str
    dimensions: tuple[int, ...]
    memory_space: int = 0
    padded: tuple[int, ...] = ()
    layout: str = ""

    @property
    def is_on_host(self) -> bool:
        return self.memory_space == HOST_MEMORY

    @property
    def num_elements(self) -> int:
        return prod(self.dimensions)

    @property
    def size_bytes(self) -> int:
        """What its elements take; 0 for what holds none (a token)."""
        bits = 8 if self.dtype == "pred" else int((_ELEMENT_BITS.match(self.dtype) or ("", 0))[1])
        return -(-prod(self.dimensions) * bits // 8)


@dataclass(frozen=True, slots=True)
class Shape:
    """The leaves of a result in order; for a tuple, `child_starts[k]` is the first leaf of its k-th element."""

    leaves: tuple[ResultLeaf, ...]
    child_starts: tuple[int, ...] | None

    def child(self, index: int) -> range:
        """The leaves of the tuple's element `index`."""
        assert self.child_starts is not None
        return range(self.child_starts[index], self.child_starts[index + 1])


class Instruction(Struct, frozen=True, gc=False):
    """One HLO instruction. `operands` and `called` are indices into the program's instructions and computations.

    A program has tens of thousands: as a frozen dataclass they take 15 times as long to make as a `Struct` like this.

    `first_position` is the number of its first leaf; its leaves are numbered consecutively. `trip_count` is how often a
    `while` runs its body, where the compiler knows. What only one opcode has (`parameter_number`, `tuple_index`,
    `custom_call_target`) is 0 or empty for the others. `dimensions` are those that a `reduce` does away with, or that a
    `sort` sorts along; others that XLA gives dimensions to have theirs. `device_groups` are those of a collective (see
    `replica_groups.py`). `product` is that of a dot, a convolution or a library call.
    """

    name: str
    opcode: str
    shape: Shape
    first_position: int
    operands: tuple[int, ...]
    called: tuple[int, ...]
    parameter_number: int
    tuple_index: int
    custom_call_target: str
    op_name: str
    source_file: str
    source_line: int
    stack_frame_id: int
    trip_count: int | None
    dimensions: tuple[int, ...] = ()
    device_groups: tuple[tuple[int, ...], ...] = ()
    product: Product | None = None

    @property
    def is_combined(self) -> bool:
        """Whether XLA has made it of several collectives: its result number k belongs to its operand number k.

        Its name and source are those of all, or of the first, so it is decoded without.
        """
        return combines(self.opcode, len(self.operands))

    @property
    def positions(self) -> range:
        return range(self.first_position, self.first_position + len(self.shape.leaves))


def combines(opcode: str, num_operands: int) -> bool:
    """Whether an instruction is a combined one (see `Instruction.is_combined`)."""
    return num_operands > 1 and COLLECTIVES.get(opcode, "all-to-all") not in _MIXING


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """One HLO computation: its instructions in the order they run, its parameters by number, and its root.

    `first_alike` is the number of the first computation that is equal to it but for names (see `repeated_bodies.py`),
    or its own: then instruction number k of one is instruction number k of the other.
    """

    name: str
    instructions: tuple[int, ...]
    parameters: tuple[int, ...]
    root: int
    first_alike: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack trace."""

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """See the module's docstring. `index_of_id` gives the index of the instruction that has some id in the proto."""

    instructions: Sequence[Instruction]
    computations: Sequence[Computation]
    entry: Computation
    num_positions: int
    index_of_id: InstructionIds
    frames: Sequence[tuple[Frame, int]]  # (frame, parent frame id); ids count from 1, 0 is the bottom

    def stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        """The stack trace of an instruction, innermost frame first; empty where the program does not tell."""
        stack: list[Frame] = []
        frame_id = instruction.stack_frame_id
        while 0 < frame_id <= len(self.frames) and len(stack) < len(self.frames):
            frame, frame_id = self.frames[frame_id - 1]
            stack.append(frame)
        if not stack and instruction.source_file:
            return (Frame(instruction.source_file, "", instruction.source_line),)
        return tuple(stack)
