"""What attention needs of a cache: the last tokens, where a mask hides all others, and each head once.

A mask of a sliding window compares positions, in one of several ways: `i > position - 64`, `position - i < 64`. Each
side is a line, `sign * i + offset` plus values that are not known. Their difference says what the mask keeps:
`-i - 64 + position < 0` keeps the last 64 positions up to `position`.

Heads are repeated by a broadcast along a new axis, which a reshape merges with the axis of the heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from jax.extend import core

# Axes of the batch and of its tokens, or of its heads, are not those that heads are repeated along.
_FIRST_AXIS_OF_COPIES = 2
_LINEAR = frozenset({"add", "sub", "max"})
_KEEP_A_LINE = frozenset(
    "reshape transpose broadcast_in_dim squeeze expand_dims convert_element_type copy copy_p pvary slice".split()
)


class Line(NamedTuple):
    """A position, as a linear function of an iota.

    Attributes:
        sign: what the iota is multiplied by; 0: there is none, or it is not known.
        offset: the sum of the literals that are added.
        length: the length of the iota.
    """

    sign: int = 0
    offset: int = 0
    length: int = 0


NO_LINE = Line()


class Window(NamedTuple):
    """The number of positions that a mask keeps, and the number that it is for."""

    size: int
    length: int


def line_of(equation: Any, lines: Sequence[Line]) -> Line:
    """Return the line of an operation's result; `NO_LINE` if it is none."""
    name = equation.primitive.name
    if name == "iota":
        return Line(sign=1, length=equation.params["shape"][equation.params["dimension"]])
    if name in _KEEP_A_LINE:
        return _with_literals(equation, lines)[0]
    if name not in _LINEAR:
        return NO_LINE
    left, right = _with_literals(equation, lines)
    if name == "max":  # `max(position - 63, 0)`: the first position is the last that could be kept
        return next((line for line, other in ((left, right), (right, left)) if other == NO_LINE), NO_LINE)
    return _sum(left, right, -1 if name == "sub" else 1)


def window_of(equation: Any, lines: Sequence[Line]) -> Window | None:
    """Return the window of a comparison; None if it does not hide what lies far back."""
    name = equation.primitive.name
    left, right = _with_literals(equation, lines)
    line = _sum(left, right, -1) if name in ("lt", "le") else _sum(right, left, -1)
    size = -line.offset + (name in ("le", "ge"))
    is_window = name not in ("eq", "ne") and line.sign == -1 and 1 < size < line.length
    return Window(size, line.length) if is_window else None


def num_copies(equation: Any) -> int:
    """Return how many equal copies of its operand an operation makes along an axis of heads."""
    if equation.primitive.name == "tile":
        batch, *others = equation.params["reps"]
        return prod(others) if batch == 1 else 1
    if equation.primitive.name != "broadcast_in_dim":
        return 1
    shape, kept = equation.params["shape"], equation.params["broadcast_dimensions"]
    before = dict(zip(kept, equation.invars[0].aval.shape, strict=True))
    grown = [axis for axis, length in enumerate(shape) if length != before.get(axis, 1)]
    return int(shape[grown[0]]) if len(grown) == 1 and grown[0] >= _FIRST_AXIS_OF_COPIES else 1


def _with_literals(equation: Any, lines: Sequence[Line]) -> list[Line]:
    return [
        Line(offset=int(atom.val)) if isinstance(atom, core.Literal) and _is_integer(atom) else line
        for atom, line in zip(equation.invars, lines, strict=True)
    ]


def _is_integer(atom: Any) -> bool:
    return not atom.aval.shape and atom.aval.dtype.kind in "iu"


def _sum(left: Line, right: Line, factor: int) -> Line:
    sign = left.sign + factor * right.sign
    if left.sign and right.sign:  # positions of queries and of keys
        return NO_LINE
    return Line(sign, left.offset + factor * right.offset, max(left.length, right.length))
