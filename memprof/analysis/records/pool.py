"""The memory pool of a device's allocator: its settings, the allocations of a step, and whether they fit.

JAX's allocator reserves a share of a GPU's memory when it starts, and every array and temp block lies in that pool. So
the pool determines whether a step fits, not the card's whole memory (docs/verdict.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

from msgspec import Meta

from memprof.untrusted import Words

DEFAULT_MEM_FRACTION = Fraction(3, 4)  # of the card, in jaxlib 0.10.2 to 0.12
MAX_MEM_FRACTION = 1000.0  # with unified memory a pool may be larger than the card


class Allocator(StrEnum):
    """The values of XLA_PYTHON_CLIENT_ALLOCATOR; `default` means `bfc`."""

    BFC = "bfc"
    PLATFORM = "platform"
    CUDA_ASYNC = "cuda_async"
    VMM = "vmm"
    ADDRESS = "address"

    @property
    def is_capped(self) -> bool:
        """Whether the fraction is a limit: `platform` ignores it, and `cuda_async` grows beyond it."""
        return self not in (Allocator.PLATFORM, Allocator.CUDA_ASYNC)

    @property
    def has_pieces(self) -> bool:
        """Whether one request needs contiguous free memory; other allocators map pages, or ask the driver."""
        return self is Allocator.BFC


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings that determine the size of JAX's pool.

    Attributes:
        mem_fraction: its share of the card's memory; None means JAX's default.
        preallocate: whether the pool is allocated at once, as one piece. Otherwise it grows, up to the same limit.
        unified_memory: whether the pool may extend into the host's memory (TF_FORCE_UNIFIED_MEMORY).
        origin: the setting of the fraction, as the user wrote it: `XLA_CLIENT_MEM_FRACTION=.9`, `--pool 0.9`.
    """

    allocator: Allocator = Allocator.BFC
    mem_fraction: Annotated[float, Meta(gt=0, le=MAX_MEM_FRACTION)] | None = None
    preallocate: bool = True
    unified_memory: bool = False
    origin: Words = ""

    @property
    def fraction(self) -> Fraction:
        """The share of the card, as exactly the decimal number that the user wrote."""
        return DEFAULT_MEM_FRACTION if self.mem_fraction is None else Fraction(str(self.mem_fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The allocations of a step, in bytes, each as the runtime requests it. They add up to the footprint.

    Attributes:
        held: arguments that keep their memory (donated, or never written), and constants.
        replaced: arguments that each step replaces by a new array, because they are not donated.
        batch: arguments that are new in each step.
        results: results that alias no argument: first those that replace an argument, then the others.
        temps: temp blocks; usually one.
    """

    held: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    temps: tuple[int, ...] = ()

    @property
    def footprint_bytes(self) -> int:
        """The sum of all pieces."""
        return sum(map(sum, (self.held, self.replaced, self.batch, self.results, self.temps)))


class Answer(StrEnum):
    """Whether a step fits a pool."""

    FITS = "fits"
    FITS_WITH = "fits_with"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a step fits JAX's pool.

    Attributes:
        pool_bytes: the size of the pool; None if unknown.
        mem_fraction: for `fits_with`, the smallest XLA_CLIENT_MEM_FRACTION that fits, rounded up to hundredths.
        short_bytes: the bytes that the pool lacks; 0 if the step fits.
        sentence: the verdict in words, as every command shows it.
    """

    answer: Answer
    pool_bytes: int | None
    mem_fraction: float | None
    short_bytes: int
    sentence: str

    @property
    def fits(self) -> bool | None:
        """Whether it fits without a change; None if unknown."""
        return None if self.answer is Answer.UNKNOWN else self.answer is Answer.FITS

    @property
    def needed_bytes(self) -> int | None:
        """The smallest sufficient pool of a step that does not fit; None for a step that fits."""
        return None if self.pool_bytes is None or not self.short_bytes else self.pool_bytes + self.short_bytes
