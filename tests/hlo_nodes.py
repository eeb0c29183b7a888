"""Shapes, instructions and computations of a program by hand: the parts of `hlo.Step`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from memprof.analysis.hlo.hlo_proto import PRIMITIVE_TYPES, ShapeProto

if TYPE_CHECKING:
    from hlo import Step

# Op names as JAX writes them, for a step whose model is called `Net`.
FORWARD = "jit(step)/jvp(Net)/op"
BACKWARD = "jit(step)/transpose(jvp(Net))/op"
RECOMPUTED = "jit(step)/transpose(jvp(Net))/checkpoint/rematted_computation/op"
PLAIN = "jit(step)/op"  # before, after or beside differentiation
UNNAMED = ""  # inserted by the compiler

_ITEM_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "s8": 1, "u8": 1, "pred": 1, "token": 0}
_ITEM_BYTES |= {"c128": 16, "c64": 8, "s4": 1, "f8e4m3fn": 1, "f8e5m2": 1}
_POINTER_BYTES = 8

# Their results lie in memory that other instructions define.
_NO_MEMORY = frozenset(
    "parameter get-tuple-element tuple bitcast while conditional call optimization-barrier"
    " copy-done async-start async-update async-done all-gather-done all-reduce-done".split()
)


@dataclass(frozen=True, slots=True)
class Shape:
    """An array, or a tuple of `elements`. `order` is that of its dimensions in memory, neighbours first."""

    dtype: str
    dimensions: tuple[int, ...] = ()
    elements: tuple[Shape, ...] = ()
    memory_space: int = 0
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        if self.dtype == "tuple":
            return _POINTER_BYTES * len(self.elements)
        return prod(self.dimensions) * _ITEM_BYTES[self.dtype]

    def parts(self, index: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Shape]]:
        """The shape and all that is in it, each with its shape index."""
        yield index, self
        for number, element in enumerate(self.elements):
            yield from element.parts((*index, number))


def array(dtype: str, *dimensions: int) -> Shape:
    return Shape(dtype, dimensions)


def f32(*dimensions: int) -> Shape:
    return Shape("f32", dimensions)


def tuple_of(*elements: Shape) -> Shape:
    return Shape("tuple", elements=elements)


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """One instruction. `Computation.op` says what the fields mean."""

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[Node, ...] = ()
    op_name: str = ""
    called: tuple[Computation, ...] = ()
    number: int = 0  # the parameter's number, or the tuple's element
    target: str = ""
    frame: int = 0
    shares: Node | None = None
    holds: tuple[int, ...] | None = None
    table: bool = False
    groups: Sequence[Sequence[int]] = ()
    contracting: tuple[int, ...] = ()
    fields: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def memory(self) -> Node:
        """The instruction whose memory this one uses."""
        return self if self.shares is None else self.shares.memory

    def buffers(self) -> list[tuple[tuple[int, ...], Shape]]:
        """Shape index and shape of each part of the result that has memory of its own."""
        parts = [(index, part) for index, part in self.shape.parts() if part.dtype not in ("tuple", "token")]
        if self.opcode in _NO_MEMORY:
            parts = []
        if self.holds is not None:
            parts = [(index, part) for index, part in parts if index[0] in self.holds]
        return [((), self.shape), *parts] if self.table else parts


class Computation:
    """A computation; the last instruction is its root."""

    def __init__(self, step: Step, name: str, *, fused: bool = False) -> None:
        self.step, self.name, self.fused = step, name, fused
        self.nodes: list[Node] = []

    def op(
        self,
        name: str,
        opcode: str,
        shape: Shape,
        operands: Sequence[Node] = (),
        op_name: str = UNNAMED,
        *,
        called: Sequence[Computation] = (),
        number: int = 0,
        target: str = "",
        frame: int = 0,
        shares: Node | None = None,
        holds: tuple[int, ...] | None = None,
        table: bool = False,
        groups: Sequence[Sequence[int]] = (),
        contracting: tuple[int, ...] = (),
        fields: Mapping[str, bytes] | None = None,
    ) -> Node:
        """Add an instruction.

        Args:
            called: a fusion's computation, a loop's body and condition (in this order), a conditional's branches.
            target: of a custom call.
            frame: a stack frame, see `Step.frame`.
            shares: the instruction in whose memory the result is written.
            holds: the elements of a tuple result that have memory; all, unless given.
            groups: the devices that a collective connects; of a permute the pairs of source and target.
            contracting: the dimensions of a dot's first operand that it sums over.
            fields: other fields of the instruction, serialized.
            table: the result is a tuple whose table of pointers has memory too. XLA does not trace tables.
        """
        node = Node(
            id=self.step.next_id(),
            name=name,
            opcode=opcode,
            shape=shape,
            operands=tuple(operands),
            op_name=op_name,
            called=tuple(called),
            number=number,
            target=target,
            frame=frame,
            shares=shares,
            holds=holds,
            table=table,
            groups=groups,
            contracting=contracting,
            fields=fields or {},
        )
        self.nodes.append(node)
        return node

    def parameter(self, shape: Shape, name: str = "") -> Node:
        number = sum(node.opcode == "parameter" for node in self.nodes)
        return self.op(name or f"{self.name}.p{number}", "parameter", shape, number=number)

    def element(self, of: Node, number: int) -> Node:
        name = f"{of.name}.element{number}.in.{self.name}"
        return self.op(name, "get-tuple-element", of.shape.elements[number], [of], number=number)

    def tuple(self, *nodes: Node, table: bool = False) -> Node:
        name = f"{self.name}.tuple{len(self.nodes)}"
        return self.op(name, "tuple", tuple_of(*(node.shape for node in nodes)), nodes, table=table)

    @property
    def root(self) -> Node:
        return self.nodes[-1]


def serialized_shape(shape: Shape) -> bytes:
    """A shape as an instruction holds it."""
    message = ShapeProto()
    write_shape(message, shape)
    serialized: bytes = message.SerializeToString()
    return serialized


def write_shape(message: Any, shape: Shape) -> None:
    """Write a shape into a `ShapeProto`."""
    message.element_type = next(number for number, name in PRIMITIVE_TYPES.items() if name == shape.dtype)
    message.dimensions.extend(shape.dimensions)
    if shape.memory_space:
        message.layout.memory_space = shape.memory_space
    message.layout.minor_to_major.extend(shape.order)
    if shape.tile:
        message.layout.tiles.add().dimensions.extend(shape.tile)
    for element in shape.elements:
        write_shape(message.tuple_shapes.add(), element)
