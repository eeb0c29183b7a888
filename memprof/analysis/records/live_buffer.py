"""A live buffer: the memory of one value, its live range, and all known facts about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from memprof.analysis.records.categories import Category, Phase

_CELL = re.compile(r"\bCell In\[(\d+)\](?::(\d+)\b)?")  # IPython's name for the code of a cell


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call of the Python stack in which an operation was traced.

    Attributes:
        file: the path in the package for a file of an installed package (`flax/linen/linear.py`), else the full path.
        function: its qualified name (`Attention.__call__`); empty if the program does not contain it.
        line: the line number, from 1.
        is_own: whether it is the user's own code instead of a library's.
    """

    file: str
    function: str
    line: int
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBuffer:
    """One live range of one value in memory.

    Attributes:
        name: the HLO instruction that defines it.
        shape_index: its index in that instruction's result: `()` for an array, `(1,)` for the second of a tuple.
        shape, dtype: those of the value; the dtype is XLA's name (`bf16`, `f32`, `s32`).
        module: the path of its module (`layers_0/mlp`); empty at top level.
        op: JAX's op name (`jit(step)/jvp(Transformer)/layers_0/mlp/dot_general`), or the argument's path.
        source: `file.py:12` in the user's own code; empty if the program does not contain it.
        library: the most informative line of a library beneath `source` (`flax/linen/linear.py:271`); empty if there is
            none.
        rule: the attribution rule that claimed it; `evidence` is the rule's reason in one sentence.
        start, end: the first and last position in program order at which the buffer is live (inclusive).
        offset: the byte offset in the temp block; None for a value outside it, which has an indefinite lifetime.
        at_peak: whether it is live at the peak.
        padding_bytes: the part of its memory without elements (see `hlo/tiling.py`).
        padded: its shape with that padding; empty if its dimensions have no padding.
        is_of_attention: whether it relates queries to keys in an attention (see `attribution/patterns.py`).
        is_of_softmax: whether its exponentials are summed, or it is made from such an array element by element.
        is_stacked: whether a loop fills it, one piece per iteration.
        stack: the Python calls in which it was traced, outermost first; empty if the program does not contain them.
        family: an equal number for arrays that are split together; 0 for small arrays and arrays that cannot be split
            (see `attribution/patterns.py`).
    """

    size_bytes: int
    shape: tuple[int, ...]
    dtype: str
    category: Category
    phase: Phase
    module: str
    name: str
    op: str
    source: str
    rule: str
    evidence: str
    start: int
    end: int
    offset: int | None
    at_peak: bool
    is_of_attention: bool = False
    is_of_softmax: bool = False
    is_stacked: bool = False
    family: int = 0
    library: str = ""
    padding_bytes: int = 0
    padded: tuple[int, ...] = ()
    shape_index: tuple[int, ...] = ()
    stack: tuple[StackFrame, ...] = field(default=(), hash=False)

    @property
    def is_temp(self) -> bool:
        """Whether it lies in the temp block; other buffers are live for the whole step."""
        return self.offset is not None


def array_type(dtype: str, shape: Iterable[int]) -> str:
    """Return an array's type as JAX and XLA print it: `bf16[8,1024,768]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def shown_source(text: str) -> str:
    """Rewrite a text with a source line for display: a notebook's `Cell In[3]:6` becomes `cell 3, line 6`."""
    return _CELL.sub(lambda match: f"cell {match[1]}" + (f", line {match[2]}" if match[2] else ""), text)
