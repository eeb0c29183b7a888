"""The records that `log.py` makes from the log of an out-of-memory error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Moment(StrEnum):
    """The moment when memory ran out."""

    COMPILING = "compiling"
    LOADING = "loading"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBuffer:
    """A buffer as XLA lists it.

    Attributes:
        size_bytes: size with padding, rounded as in the list (`2.00G`).
        array: type and shape, `f32[4096,128,3]`.
        op, source: JAX's name of the operation that makes it, and its line (`model.py:12`); empty for an argument.
        label: XLA's name of the instruction.
        kind: XLA's description of it: `HLO temp`, `argument`; empty if there is none.
    """

    size_bytes: int
    array: str = ""
    op: str = ""
    source: str = ""
    label: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The allocator's pool when it had no free block left.

    Attributes:
        limit_bytes, in_use_bytes: limit and use of the pool; None if the log does not show them.
        free_bytes: total size of the free blocks in the pool.
        largest_free_bytes: the largest free block.
        largest_chunks: the block sizes in use with the largest totals, with the number of blocks.
        share_in_use: share of the pool in use, from XLA's picture of it, a line of `*` and `_`.
    """

    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    largest_chunks: tuple[tuple[int, int], ...] = ()
    share_in_use: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rematerialization:
    """XLA's own attempt to use less memory: its limit, its result, and its start."""

    limit_bytes: int
    reduced_bytes: int
    original_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The content of a log. Missing information is None or empty.

    Attributes:
        message: XLA's own line.
        device: `GPU`, `TPU` or `CPU`; empty if the message does not show it.
        space: the memory space: `hbm`, `vmem`; empty for a GPU's memory and the host's.
        asked_bytes: size of the failed allocation; for a rejected program, its total need.
        free_bytes: free memory at that moment.
        capacity_bytes: total memory.
        parts: bytes that the program needs, by XLA's names for the parts.
        buffers: the largest buffers of the program, as XLA lists them.
        is_rounded: whether the log has `asked_bytes` in three or four digits only.
        num_messages: number of out-of-memory messages in the log.
        num_tries: number of failed requests by XLA's autotuner, which are not failures of the run.
    """

    message: str
    when: Moment
    device: str
    asked_bytes: int | None
    space: str = ""
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    buffers: tuple[ListedBuffer, ...] = ()
    rematerialization: Rematerialization | None = None
    pool: Pool | None = None
    is_rounded: bool = False
    num_messages: int = 1
    num_tries: int = 0
