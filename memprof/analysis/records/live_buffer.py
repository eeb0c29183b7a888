"""A live buffer: what one value holds of memory, when, and all that is known of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from memprof.analysis.records.categories import Category, Phase

_CELL = re.compile(r"\bCell In\[(\d+)\](?::(\d+)\b)?")  # as IPython names the code of a cell


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call of the Python stack that an operation was traced in.

    Attributes:
        file: of an installed package its path in the package (`flax/linen/linear.py`), of any other its full path.
        function: its qualified name (`Attention.__call__`); empty where the program does not tell.
        line: from 1.
        is_own: it is the user's own code, and not a library's.
    """

    file: str
    function: str
    line: int
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBuffer:
    """One stretch of time in which one value holds memory.

    Attributes:
        name: the HLO instruction that defines it.
        shape_index: place in the result of that instruction: `()` for an array, `(1,)` for the second of a tuple.
        shape, dtype: of the value; dtype in XLA's words (`bf16`, `f32`, `s32`).
        module: path of the module that it belongs to (`layers_0/mlp`), empty at top level.
        op: the op name that JAX gave (`jit(step)/jvp(Transformer)/layers_0/mlp/dot_general`), or the argument's path.
        source: `file.py:12` of the user's own code, empty where the program does not tell.
        library: the line of a library beneath it that says most of what it does (`flax/linen/linear.py:271`), empty
            where there is none.
        rule: the attribution rule that claimed it; `evidence` is its reason in one sentence.
        start, end: first and last position in program order at which the buffer is live (end inclusive).
        offset: byte offset in the temp block; None for what lies outside it and has an indefinite lifetime.
        at_peak: it is live at the peak.
        padding_bytes: the part of its memory that holds no elements (see `hlo/tiling.py`).
        padded: its shape with that padding; empty where it has none within its dimensions.
        is_of_attention: it relates queries to keys within an attention (see `attribution/patterns.py`).
        is_of_softmax: exponentials of it are summed up, or it is made of such an array element by element.
        is_stacked: a loop puts it together, a piece in each turn.
        stack: the calls of the Python stack that it was traced in, outermost first; empty where the program tells none.
        family: the same number for arrays that exist in pieces if one of them does; 0 for those that cannot be cut, and
            for small ones (see `attribution/patterns.py`).
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
        """Whether it lies in the temp block; what does not is live for the whole step."""
        return self.offset is not None


def array_type(dtype: str, shape: Iterable[int]) -> str:
    """An array's type as JAX and XLA print it: `bf16[8,1024,768]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def shown_source(text: str) -> str:
    """A source line, or a text with one, as people read it: of a notebook `cell 3, line 6`, in data `Cell In[3]:6`."""
    return _CELL.sub(lambda match: f"cell {match[1]}" + (f", line {match[2]}" if match[2] else ""), text)
