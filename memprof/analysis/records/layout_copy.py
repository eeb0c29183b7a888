"""A copy that computes nothing: it writes an array in another order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CopyKind = Literal["copy", "transpose", "reshape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The operation that makes the copied array, or that reads the copy.

    Attributes:
        name: the HLO instruction; empty for the result of the step.
        op: JAX's name of the operation, or the path of an argument; empty if the program has none.
        source: `file.py:12`, as in `LiveBuffer`.
        role: its role in the program.
    """

    name: str
    op: str
    source: str
    role: Literal["operation", "argument", "constant", "result", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCopy:
    """One operation of the compiled program that only changes the layout of an array.

    XLA writes a layout as the dimensions in storage order, contiguous first, and the tiles: `{0,1:T(8,128)}`.

    Attributes:
        name: the HLO instruction.
        kind: `copy` changes only the order or the tiles; `transpose` and `reshape` change the dimensions too.
        dtype, shape, layout: those of the result; the layout of an untiled array in row-major order is empty.
        old_dtype, old_shape, old_layout: those of the operand. A copy on a TPU may convert too.
        size_bytes: the size of the result, with padding.
        space: the memory that holds the result: `hbm`, `vmem`.
        num_runs: the number of runs in a step.
        is_at_least: whether `num_runs` is a lower bound, because a loop of unknown trip count counts once.
        is_at_peak: whether the result is live at the peak of the device's memory.
        op, module, source: those of the copy itself, as in `LiveBuffer`.
        producer: the operation that makes the array in its old layout.
        consumer: an operation that reads it in the new layout: a matrix product if there is one, else the next one.
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
        """The bytes that it writes in a step."""
        return self.size_bytes * self.num_runs
