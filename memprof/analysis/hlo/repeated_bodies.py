"""Computations that are equal except for their names, which are most of a program.

A layer of a network is compiled once per occurrence, and so is each update of a parameter: the 4,822 fusions of 96
layers have 76 distinct bodies. The rest differ only in names, op names and numbers. So each distinct body is decoded
and checked once; only the names of its copies are read.

Protobuf does the comparison at its own speed: a computation is parsed with declarations that omit the fields that may
differ, and serialized again. Numbers are the hard part. XLA's number of an instruction has the computation in the upper
32 bits and the place in the lower ones. Protobuf writes seven bits per byte, lowest first. So
in all numbers of one computation, the bytes after the fourth are equal. Without these bytes, the numbers of two
computations can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from memprof.analysis.hlo.hlo_proto import parse_body

_BITS_OF_PLACE = 32  # the lower bits of an instruction's number; the upper bits are the computation's
_PLACE = (1 << _BITS_OF_PLACE) - 1
_PLACE_BYTES = 4  # bytes of a number in protobuf's encoding, which hold 28 bits

BodyKey = tuple[bytes, bytes, tuple[int, ...]]


class Body:
    """A computation without names.

    Attributes:
        id: its number.
    """

    def __init__(self, serialized: bytes) -> None:
        """Args: serialized: an `xla.HloComputationProto`. Raises: MemprofError: it cannot be parsed."""
        self._body, self._numbers = parse_body(serialized)
        self.id: int = self._body.id
        self._body.ClearField("id")

    @property
    def ids(self) -> list[int]:
        """The numbers of its instructions, in the proto's order."""
        return [each.id for each in self._numbers.instructions]

    @property
    def opcodes(self) -> list[str]:
        return [each.opcode for each in self._body.instructions]

    @property
    def num_instructions(self) -> int:
        return len(self._numbers.instructions)

    @property
    def first_number(self) -> int:
        """The number of an instruction at place 0."""
        number: int = self._numbers.instructions[0].id
        return number >> _BITS_OF_PLACE << _BITS_OF_PLACE

    def key(self, order: Iterable[int]) -> BodyKey | None:
        """Return a key that is equal for computations that differ only in names, numbers and called computations.

        Args:
            order: the numbers of its instructions in execution order, if the program gives it.

        Returns:
            The key; None if the computation cannot be compared.
        """
        if not self.num_instructions:
            return None
        base = self.first_number
        if base < 0:  # only a damaged file has such a number
            return None
        upper = _upper_bytes(base)
        # All bytes of a number except the last have their highest bit set. So two or more bytes, with this bit clear
        # only in the last, are the end of a number. A single byte could be anything.
        if len(upper) < 2:
            return None
        self._body.DiscardUnknownFields()
        self._numbers.DiscardUnknownFields()
        places = tuple([number - base for number in order])
        return self._body.SerializeToString(), self._numbers.SerializeToString().replace(upper, b""), places


@dataclass(slots=True)
class InstructionIds:
    """The index of each instruction by its number in the proto.

    If a computation is equal to an earlier one, its instructions are found by their places in the earlier one.
    """

    _indices: dict[int, int] = field(default_factory=dict)
    # By the upper half of their numbers: the first number of the earlier one, and the distance of the two in indices.
    _alike: dict[int, tuple[int, int]] = field(default_factory=dict)
    _num_added: int = 0
    _num_alike: int = 0

    def add(self, ids: Sequence[int], begin: int) -> None:
        """Add the instructions of one computation. Args: begin: the index of the first."""
        self._indices.update(zip(ids, range(begin, begin + len(ids)), strict=True))
        self._num_added += len(ids)

    def add_alike(self, first: int, other: int, shift: int) -> None:
        """Add the instructions of a computation that is equal to an earlier one.

        Args:
            first, other: the first number of this and of the earlier one (see `Body.first_number`).
            shift: the distance of the two in indices.
        """
        self._alike[first >> _BITS_OF_PLACE] = other, shift
        self._num_alike += 1

    @property
    def are_ambiguous(self) -> bool:
        """Whether two instructions have the same number."""
        return (
            len(self._indices) < self._num_added
            or len(self._alike) < self._num_alike
            or not self._alike.keys().isdisjoint(each >> _BITS_OF_PLACE for each in self._indices)
        )

    def __getitem__(self, number: int) -> int:
        try:
            return self._indices[number]
        except KeyError:
            other, shift = self._alike[number >> _BITS_OF_PLACE]
            return self._indices[other + (number & _PLACE)] + shift

    def __contains__(self, number: int) -> bool:
        if number in self._indices:
            return True
        alike = self._alike.get(number >> _BITS_OF_PLACE)
        return alike is not None and alike[0] + (number & _PLACE) in self._indices


def _upper_bytes(number: int) -> bytes:
    """Return the bytes after the fourth of a number in protobuf's encoding."""
    rest = number >> 7 * _PLACE_BYTES
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)
