"""What a Pallas kernel of a program for a TPU asks of the memories on the chip: VMEM, SMEM, and that of semaphores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from memprof.untrusted import Bytes, Count, Dimensions, Text

Kind = Literal["prefetch", "input", "output", "scratch"]

# libtpu 0.0.42 to 0.0.50; the second is about a kernel's scratch memory, `sflag` about its semaphores.
_ON_CHIP = re.compile(r"in memory space (vmem|smem|cmem|sflag)|^Allocation .* would exceed memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBuffer:
    """One reference of a kernel that lies in VMEM or SMEM.

    Attributes:
        kind: `prefetch` is a scalar prefetch operand, in SMEM as a whole.
        shape: of the block.
        num_buffers: how many blocks are there at once: 2 if one is copied while the kernel works on the other.
        size_bytes: of all of them, with padding; 0 if the whole array is in VMEM already, which XLA decides.
    """

    kind: Kind
    dtype: Text
    shape: Dimensions
    num_buffers: Annotated[int, Meta(ge=1, le=2)]
    size_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One call of a kernel.

    Attributes:
        instruction: XLA's name of the call.
        buffers: in VMEM, inferred from the kernel's body and the layouts of its operands.
        limit_bytes: of VMEM for one kernel: what the kernel asks for (`vmem_limit_bytes`), else the compiler's, but no
            more than the chip has; None where it is unknown.
        used_bytes: what the compiler reports, with its own temporaries; None of a plan: it is known once code is
            generated.
        smem_buffers: in SMEM, inferred likewise.
        smem_limit_bytes: the SMEM of the chip; None where it is unknown.
        num_semaphores: in a memory of their own, without those that the compiler adds to copy blocks.
    """

    instruction: Text
    buffers: tuple[KernelBuffer, ...]
    limit_bytes: Bytes | None
    used_bytes: Bytes | None = None
    smem_buffers: tuple[KernelBuffer, ...] = ()
    smem_limit_bytes: Bytes | None = None
    num_semaphores: Count = 0

    @property
    def asked_bytes(self) -> int:
        """What its blocks and its scratch memory take of VMEM."""
        return sum(buffer.size_bytes for buffer in self.buffers)

    @property
    def smem_bytes(self) -> int:
        """What it asks of SMEM."""
        return sum(buffer.size_bytes for buffer in self.smem_buffers)

    @property
    def is_over_limit(self) -> bool:
        """Whether it asks for more VMEM than its limit, before any temporaries of the compiler."""
        return self.limit_bytes is not None and self.asked_bytes > self.limit_bytes

    @property
    def is_over_smem(self) -> bool:
        """Whether it asks for more SMEM than the chip has."""
        return self.smem_limit_bytes is not None and self.smem_bytes > self.smem_limit_bytes

    @property
    def scratch_bytes(self) -> int:
        """The part of VMEM that is scratch memory, which the compiler allocates first."""
        return sum(buffer.size_bytes for buffer in self.buffers if buffer.kind == "scratch")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCalls:
    """The calls of one kernel from one source line with equal sizes.

    Attributes:
        name: XLA's name of the calls without their number.
        kernel: the first call.
        num_calls: in the program; those in a loop count once.
        module, source: of the first call, as in `LiveBuffer`.
    """

    name: str
    kernel: Kernel
    num_calls: int
    module: str
    source: str


def is_about_chip(refusal: str) -> bool:
    """Whether the compiler's sentence is about memory on the chip, not about HBM."""
    return _ON_CHIP.search(refusal) is not None
