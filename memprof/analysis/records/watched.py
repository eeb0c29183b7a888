"""What is seen of a script that `memprof watch` runs: calls, compiles, the arrays on the device, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call of a jitted function, with arguments for which it had not been traced before.

    Attributes:
        id: of the process and of the call in it.
        function: its name.
        place: the file and line of its definition, `train.py:31`; empty where it has none.
        jit: tells the jitted function from another one that was made of the same code.
        arguments: the type of each array by its path, as `float32[128,784]`.
        statics: what static arguments were, by name.
        results: the types of what it returns.
        differentiates: whether there is a backward pass in it.
        updates: whether it gives back what it differentiates with respect to, updated.
        not_followed: why memprof could not follow its arguments; empty where it could.
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
    """Arrays of one type that are on a device.

    Attributes:
        type: `float32[128,784]`.
        count: how many there are.
        size_bytes: of all of them together, on the device that holds most.
        holder: what in the script holds some of them: `losses[...] in train (train.py:31)`; empty: not looked for.
    """

    type: str
    count: int
    size_bytes: int
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArrays:
    """The arrays that were on the device at one moment.

    Attributes:
        seconds: since the script began.
        groups: by type, those with most bytes first.
        in_use_bytes: what the device's allocator had given out; None where it does not count.
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
        name: of the program: `jit_train_step`.
        call: the id of the call that it was made for; None for the operations that JAX itself compiles.
        began, seconds: when, since the script began, and how long it took; None: it did not come to an end.
        live: what was on the device when it began; None: not looked at.
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
    """How a script ended.

    Attributes:
        error: the traceback of an error that nobody caught; empty where there was none.
        is_out_of_memory: whether that error says that a device was out of memory.
        has_seen_enough: whether memprof ended it, since it had seen what was asked for.
        live: what was on the device then.
    """

    error: str = ""
    is_out_of_memory: bool = False
    has_seen_enough: bool = False
    live: LiveArrays | None = None
