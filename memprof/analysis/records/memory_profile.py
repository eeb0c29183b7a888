"""The live allocations on a job's devices at one moment, from `jax.profiler.save_device_memory_profile`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memprof.analysis.records.live_buffer import StackFrame


class Kind(StrEnum):
    """The kind of owner of an allocation."""

    BUFFER = "buffer"
    EXECUTABLE = "executable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Live allocations of one size and one Python stack.

    Attributes:
        device: JAX's name of the device (`cuda:0`); empty for an executable.
        size_bytes: the total size.
        stack: the Python calls that made them, outermost first.
    """

    kind: Kind
    device: str
    count: int
    size_bytes: int
    stack: tuple[StackFrame, ...]

    @property
    def each_bytes(self) -> int:
        """The size of one allocation."""
        return self.size_bytes // self.count if self.count else 0

    @property
    def own_calls(self) -> tuple[StackFrame, ...]:
        """The calls in the user's own code; if there are none, the innermost call."""
        return tuple(frame for frame in self.stack if frame.is_own) or self.stack[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """All live allocations.

    Attributes:
        name: the name of the file.
        alive: the allocations in the order of the file.
    """

    name: str
    alive: tuple[Alive, ...]

    def size_of(self, kind: Kind, device: str | None = None) -> int:
        """Return the bytes of a kind, on all devices or on one."""
        return sum(each.size_bytes for each in self.of(kind, device))

    def count_of(self, kind: Kind, device: str | None = None) -> int:
        """Return the number of allocations of a kind, on all devices or on one."""
        return sum(each.count for each in self.of(kind, device))

    def of(self, kind: Kind, device: str | None = None) -> tuple[Alive, ...]:
        """Return the allocations of a kind, on all devices or on one."""
        return tuple(each for each in self.alive if each.kind is kind and device in (None, each.device))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that hold buffers, largest total first."""
        names = {each.device for each in self.of(Kind.BUFFER)}
        return tuple(sorted(names, key=lambda name: (-self.size_of(Kind.BUFFER, name), name)))
