"""The records of a log that reports an out-of-memory error; `log.py` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Moment(StrEnum):
    """When the memory ran out."""

    COMPILING = "compiling"
    LOADING = "loading"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBuffer:
    """A buffer as XLA lists it.

    Attributes:
        size_bytes: with padding, as rounded in the list (`2.00G`).
        array: type and shape, `f32[4096,128,3]`.
        op, source: JAX's name of the operation that makes it, and the line (`model.py:12`); empty of an argument.
        label: XLA's name of the instruction.
        kind: XLA's word on what it is: `HLO temp`, `argument`; empty where there is none.
    """

    size_bytes: int
    array: str = ""
    op: str = ""
    source: str = ""
    label: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The allocator's pool when it had no block left.

    Attributes:
        limit_bytes, in_use_bytes: of the pool; None where the log does not tell.
        free_bytes: in blocks that are free, all together, in the pool.
        largest_free_bytes: the largest of them.
        largest_chunks: the sizes of blocks in use that take most, with how many there are.
        share_in_use: by XLA's picture of the pool, a line of `*` and `_`.
    """

    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    largest_chunks: tuple[tuple[int, int], ...] = ()
    share_in_use: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rematerialization:
    """XLA's own attempt to use less memory: what it aimed at, what it came to, and where it began."""

    limit_bytes: int
    reduced_bytes: int
    original_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What a log says. None and empty is what it does not say.

    Attributes:
        message: XLA's own line.
        device: `GPU`, `TPU` or `CPU`; empty where the message does not tell.
        space: the memory that it is about: `hbm`, `vmem`; empty of a GPU's and the host's.
        asked_bytes: what was asked for and could not be had; of a program that was refused all that it needs.
        free_bytes: what was free then.
        capacity_bytes: how much there is.
        parts: what the program needs, by XLA's words for it, in bytes.
        buffers: the largest buffers of the program, as XLA lists them.
        is_rounded: whether the log has `asked_bytes` in three or four digits only.
        num_messages: how often the log says that memory ran out.
        num_tries: how often XLA's autotuner asked in vain, which is no failure.
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
