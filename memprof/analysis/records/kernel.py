"""The on-chip memory of Pallas kernels in programs for a TPU: VMEM, SMEM and semaphores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from memprof.untrusted import Bytes, Count, Dimensions, Text

Kind = Literal["prefetch", "input", "output", "scratch"]

# libtpu 0.0.42 to 0.0.50. The second form concerns a kernel's scratch memory; `sflag` holds its semaphores.
_ON_CHIP = re.compile(r"in memory space (vmem|smem|cmem|sflag)|^Allocation .* would exceed memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBuffer:
    """One reference of a kernel that lies in VMEM or SMEM.

    Attributes:
        kind: `prefetch` is a scalar prefetch operand, which lies in SMEM as a whole.
        shape: the shape of the block.
        num_buffers: the number of blocks in memory: 2 if one is copied while the kernel works on the other.
        size_bytes: the size of all blocks, with padding; 0 if XLA has placed the whole array in VMEM already.
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
        buffers: the buffers in VMEM, inferred from the kernel's body and the layouts of its operands.
        limit_bytes: the VMEM limit of one kernel: the kernel's own (`vmem_limit_bytes`), otherwise the compiler's, but
            at most the VMEM of the chip; None if unknown.
        used_bytes: the VMEM reported by the compiler, with its own temporaries; None for a plan, because it is known
            only after code generation.
        smem_buffers: the buffers in SMEM, inferred in the same way.
        smem_limit_bytes: the SMEM of the chip; None if unknown.
        num_semaphores: the number of semaphores, which have their own memory, without those that the compiler adds to
            copy blocks.
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
        """The VMEM of its blocks and its scratch memory."""
        return sum(buffer.size_bytes for buffer in self.buffers)

    @property
    def smem_bytes(self) -> int:
        """The SMEM that it requests."""
        return sum(buffer.size_bytes for buffer in self.smem_buffers)

    @property
    def is_over_limit(self) -> bool:
        """Whether it requests more VMEM than its limit, even without temporaries of the compiler."""
        return self.limit_bytes is not None and self.asked_bytes > self.limit_bytes

    @property
    def is_over_smem(self) -> bool:
        """Whether it requests more SMEM than the chip has."""
        return self.smem_limit_bytes is not None and self.smem_bytes > self.smem_limit_bytes

    @property
    def scratch_bytes(self) -> int:
        """The VMEM of its scratch memory, which the compiler allocates first."""
        return sum(buffer.size_bytes for buffer in self.buffers if buffer.kind == "scratch")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCalls:
    """The calls of one kernel from one source line with equal sizes.

    Attributes:
        name: XLA's name of the calls without their number.
        kernel: the first call.
        num_calls: the number of calls in the program; a call in a loop counts once.
        module, source: those of the first call, as in `LiveBuffer`.
    """

    name: str
    kernel: Kernel
    num_calls: int
    module: str
    source: str


def is_about_chip(refusal: str) -> bool:
    """Whether the compiler's message concerns memory on the chip instead of HBM."""
    return _ON_CHIP.search(refusal) is not None
