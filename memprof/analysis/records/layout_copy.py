"""A copy that computes nothing: it writes an array again in another order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CopyKind = Literal["copy", "transpose", "reshape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What makes the array that is copied, or reads the copy.

    Attributes:
        name: of the HLO instruction; empty where it is the result of the step.
        op: JAX's name of the operation, or the path of an argument; empty where the program tells none.
        source: `file.py:12`, as in `LiveBuffer`.
        role: what it is in the program.
    """

    name: str
    op: str
    source: str
    role: Literal["operation", "argument", "constant", "result", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCopy:
    """One operation of the compiled program that only changes the layout of an array.

    XLA writes a layout as the dimensions in the order in which they are stored, neighbours first, and the tiles:
    `{0,1:T(8,128)}`.

    Attributes:
        name: of the HLO instruction.
        kind: `copy` changes the order or the tiles alone, `transpose` and `reshape` the dimensions too.
        dtype, shape, layout: of the result; a layout is empty where the array is stored row by row, without tiles.
        old_dtype, old_shape, old_layout: of the operand. The copy of a TPU may convert too.
        size_bytes: of the result, with padding.
        space: the memory that the result lies in: `hbm`, `vmem`.
        num_runs: in a step.
        is_at_least: it is in a loop of which the compiler does not know how often it runs: that counts once.
        is_at_peak: the result is live at the peak of the device's memory.
        op, module, source: of the copy itself, as in `LiveBuffer`.
        producer: the operation that makes the array in its old layout.
        consumer: of the operations that read it in the new layout a matrix product, else the next one.
    """

    name: str
    kind: CopyKind
    dtype: str
    old_dtype: str
    shape: tuple[int, ...]
    layout: str
    old_shape: tuple[int, ...]
    old_layout: str
    size_bytes: int
    space: str
    num_runs: int
    is_at_least: bool
    is_at_peak: bool
    op: str
    module: str
    source: str
    producer: Neighbour
    consumer: Neighbour

    @property
    def step_bytes(self) -> int:
        """What it writes in a step."""
        return self.size_bytes * self.num_runs
