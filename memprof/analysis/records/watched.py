"""Observations of a script that `memprof watch` runs: calls, compiles, the arrays on the device, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call of a jitted function with new argument types, which trace it again.

    Attributes:
        id: the process, and the call in the process.
        function: the name of the function.
        place: the file and line of its definition, `train.py:31`; empty if it has none.
        jit: an identifier that distinguishes jitted functions made from the same code.
        arguments: the type of each array by its path, like `float32[128,784]`.
        statics: the values of static arguments, by name.
        results: the types of its results.
        differentiates: whether it contains a backward pass.
        updates: whether it returns updated versions of the values with respect to which it differentiates.
        not_followed: why memprof could not follow its arguments; empty if it could.
    """

    id: str
    function: str
    place: str
    jit: int
    arguments: Mapping[str, str] = field(default_factory=dict)
    statics: Mapping[str, str] = field(default_factory=dict)
    results: tuple[str, ...] = ()
    differentiates: bool = False
    updates: bool = False
    not_followed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup:
    """The arrays of one type on a device.

    Attributes:
        type: `float32[128,784]`.
        count: the number of arrays.
        size_bytes: their total size, on the device that holds the most.
        holder: the variable of the script that holds some of them, `losses[...] in train (train.py:31)`; empty if
            memprof did not search for it.
    """

    type: str
    count: int
    size_bytes: int
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArrays:
    """The arrays on the device at one moment.

    Attributes:
        seconds: the time since the script started.
        groups: the arrays by type, largest bytes first.
        in_use_bytes: the bytes in use in the device's allocator; None if it does not count them.
    """

    seconds: float
    groups: tuple[LiveGroup, ...]
    in_use_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(group.size_bytes for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCompile:
    """One compile.

    Attributes:
        name: the name of the program: `jit_train_step`.
        call: the id of the call that caused it; None for operations that JAX itself compiles.
        began, seconds: the start, relative to the script's start, and the duration, which is None if it did not finish.
        live: the arrays on the device when it began; None if not recorded.
        failed: the first line of the compiler's error.
    """

    name: str
    call: str | None
    began: float
    seconds: float | None = None
    live: LiveArrays | None = None
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a script.

    Attributes:
        error: the traceback of an uncaught error; empty if there was none.
        is_out_of_memory: whether that error says that a device was out of memory.
        has_seen_enough: whether memprof ended the script, because it had seen what was requested.
        live: the arrays on the device at that moment.
    """

    error: str = ""
    is_out_of_memory: bool = False
    has_seen_enough: bool = False
    live: LiveArrays | None = None
