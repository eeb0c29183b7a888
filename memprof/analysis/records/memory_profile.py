"""What was alive on the devices of a job at one moment, as `jax.profiler.save_device_memory_profile` wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memprof.analysis.records.live_buffer import StackFrame


class Kind(StrEnum):
    """What holds the memory."""

    BUFFER = "buffer"
    EXECUTABLE = "executable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Allocations of one size that one stack made.

    Attributes:
        device: as JAX names it (`cuda:0`); empty for an executable.
        size_bytes: of all of them.
        stack: the Python calls that made them, outermost first.
    """

    kind: Kind
    device: str
    count: int
    size_bytes: int
    stack: tuple[StackFrame, ...]

    @property
    def each_bytes(self) -> int:
        """The size of one of them."""
        return self.size_bytes // self.count if self.count else 0

    @property
    def own_calls(self) -> tuple[StackFrame, ...]:
        """The calls in the user's own code; if there are none, the innermost call."""
        return tuple(frame for frame in self.stack if frame.is_own) or self.stack[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """All that was alive.

    Attributes:
        name: of the file.
        alive: in the order of the file.
    """

    name: str
    alive: tuple[Alive, ...]

    def size_of(self, kind: Kind, device: str | None = None) -> int:
        """The bytes of a kind, on all devices or on one."""
        return sum(each.size_bytes for each in self.of(kind, device))

    def count_of(self, kind: Kind, device: str | None = None) -> int:
        """The number of allocations of a kind, likewise."""
        return sum(each.count for each in self.of(kind, device))

    def of(self, kind: Kind, device: str | None = None) -> tuple[Alive, ...]:
        """What is of a kind, likewise."""
        return tuple(each for each in self.alive if each.kind is kind and device in (None, each.device))

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that hold buffers, the fullest first."""
        names = {each.device for each in self.of(Kind.BUFFER)}
        return tuple(sorted(names, key=lambda name: (-self.size_of(Kind.BUFFER, name), name)))
