"""The optimized program as records with dense indices; `program_decoding.py` decodes them from XLA's proto.

    program = decode_program(hlo_proto)
    program.instructions[program.entry.root].opcode

Instructions and computations are numbered from 0 in the order of the proto, so later passes can store facts in plain
lists. The leaves of an instruction's result (one for an array, several for a tuple) are numbered, too: a **position**
is one leaf of one instruction's result, the smallest unit of data flow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from msgspec import Struct

from memprof.analysis.hlo.products import Product

# The kind of each collective opcode; some run in the background, between a `-start` and a `-done`.
COLLECTIVES = {
    opcode: kind
    for kind in (
        *("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        *("collective-permute", "collective-broadcast"),
    )
    for opcode in (kind, f"{kind}-start")
}
# With several operands, each result of these depends on all operands.
_MIXING = frozenset({"all-to-all", "ragged-all-to-all"})
_ELEMENT_BITS = re.compile(r"(?:bf|f|s|u|c)(\d+)")  # the beginning of XLA's names of dtypes


HOST_MEMORY = 5  # XLA's memory space of the host (xla/layout.h, Layout::kHostMemorySpace)


class ResultLeaf(Struct, frozen=True):
    """One array in a result: its index in the (nested) tuple, XLA's name of its dtype, its dimensions.

    `memory_space` is XLA's number of its memory space. `padded` are the dimensions padded to whole tiles; empty if the
    array has no padding (see `tiling.py`). `layout` is XLA's text of the layout, `{0,1:T(8,128)}`; empty for an array
    without tiles whose last dimension is stored first.
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
        """The bytes of its elements; 0 for a token."""
        bits = 8 if self.dtype == "pred" else int((_ELEMENT_BITS.match(self.dtype) or ("", 0))[1])
        return -(-prod(self.dimensions) * bits // 8)


@dataclass(frozen=True, slots=True)
class Shape:
    """The leaves of a result in order; for a tuple, `child_starts[k]` is the first leaf of its k-th element."""

    leaves: tuple[ResultLeaf, ...]
    child_starts: tuple[int, ...] | None

    def child(self, index: int) -> range:
        """Return the leaves of the tuple's element `index`."""
        assert self.child_starts is not None
        return range(self.child_starts[index], self.child_starts[index + 1])


class Instruction(Struct, frozen=True, gc=False):
    """One HLO instruction. `operands` and `called` are indices into the program's instructions and computations.

    A program has tens of thousands; a frozen dataclass would take 15 times as long to construct as this `Struct`.

    `first_position` is the number of its first leaf; its leaves are numbered consecutively. `trip_count` is that of a
    `while`, if the compiler knows it. Fields of one opcode (`parameter_number`, `tuple_index`, `custom_call_target`)
    are 0 or empty for other opcodes. `dimensions` are those that a `reduce` removes, those that a `sort` sorts along,
    or XLA's for other opcodes. `device_groups` are those of a collective (see `replica_groups.py`). `product` is that
    of a dot, a convolution or a library call.
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
        """Whether XLA has combined several collectives in it: result k belongs to operand k.

        XLA gives it the names and sources of all, or of the first, so it is decoded without them.
        """
        return combines(self.opcode, len(self.operands))

    @property
    def positions(self) -> range:
        return range(self.first_position, self.first_position + len(self.shape.leaves))


def combines(opcode: str, num_operands: int) -> bool:
    """Whether an instruction combines collectives (see `Instruction.is_combined`)."""
    return num_operands > 1 and COLLECTIVES.get(opcode, "all-to-all") not in _MIXING


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """One HLO computation: its instructions in execution order, its parameters by number, and its root."""

    name: str
    instructions: tuple[int, ...]
    parameters: tuple[int, ...]
    root: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack trace."""

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """See the module's docstring. `index_of_id` maps an instruction's id in the proto to its index."""

    instructions: Sequence[Instruction]
    computations: Sequence[Computation]
    entry: Computation
    num_positions: int
    index_of_id: Mapping[int, int]
    frames: Sequence[tuple[Frame, int]]  # (frame, parent frame id); ids count from 1, 0 is the bottom

    def stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        """Return the stack trace of an instruction, innermost frame first; empty if the program has none."""
        stack: list[Frame] = []
        frame_id = instruction.stack_frame_id
        while 0 < frame_id <= len(self.frames) and len(stack) < len(self.frames):
            frame, frame_id = self.frames[frame_id - 1]
            stack.append(frame)
        if not stack and instruction.source_file:
            return (Frame(instruction.source_file, "", instruction.source_line),)
        return tuple(stack)
