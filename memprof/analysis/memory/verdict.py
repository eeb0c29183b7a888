"""The verdict whether a step fits JAX's pool, and the rules of the pool.

    verdict = judge(pieces, target, PoolSettings())
    verdict.sentence      # fits with XLA_CLIENT_MEM_FRACTION=.92: ...

The rules are those of jaxlib 0.10.2 to 0.12 (`xla_client.generate_pjrt_gpu_plugin_options`) and of XLA's GPU client
(xla/pjrt/gpu/se_gpu_pjrt_client.cc, gpu_helpers.cc). docs/verdict.md explains them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from memprof.amounts import format_bytes
from memprof.analysis.memory.training_loop import fits_in_pool, missing_bytes
from memprof.analysis.records.capture import Target
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.kernel import is_about_chip
from memprof.analysis.records.pool import Answer, Pieces, PoolSettings, Verdict

_VARIABLE, _OLD_VARIABLE = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
# If the card cannot provide the whole pool, XLA retries with 90% of it, repeatedly (BFCAllocator::Extend).
_BACKPEDAL = Fraction(9, 10)
_MIB = 1 << 20
# TensorFlow's figures for memory that a card needs outside the pool, by the major compute capability
# (`MinSystemMemory` in tensorflow/core/common_runtime/gpu/gpu_device.cc). The last one also covers newer cards.
_SYSTEM_MEMORY_BYTES = {6: 500 * _MIB, 7: 1050 * _MIB, 8: 1536 * _MIB, 9: 1800 * _MIB}
_SMALL_CARD_BYTES, _SMALL_CARD_SYSTEM_BYTES = 2 << 30, 225 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Device memory outside the pool. `size_bytes` is None if it is not known in advance."""

    name: str
    size_bytes: int | None
    source: str


def outside_pool(target: Target) -> tuple[Outside, ...]:
    """Return the other users of the card's memory, each figure with its source; empty for a device without a pool."""
    if not family_of(target.platform).has_cuda or target.memory_bytes is None:
        return ()
    found = [
        Outside(
            name="CUDA context, cuBLAS, cuDNN",
            size_bytes=_system_bytes(target),
            source="the memory that TensorFlow leaves free on such a card (MinSystemMemory); not measured on this one",
        ),
        Outside(
            name="CUDA graphs",
            size_bytes=None,
            source="the driver holds the graphs that XLA instantiates",
        ),
    ]
    if target.topology.num_devices > 1:
        found.append(
            Outside(
                name="NCCL",
                size_bytes=None,
                source="4 MiB a channel and connection by default (NCCL_BUFFSIZE); NCCL chooses how many it opens",
            )
        )
    return tuple(found)


def amount_in_words(target: Target) -> str:
    """Describe the memory of a target whose size is unknown or not fixed."""
    return "an unknown amount of memory" if family_of(target.platform).has_fixed_memory else "no fixed amount of memory"


def largest_fraction(target: Target) -> Fraction:
    """Return the largest share of a card that leaves room for memory outside the pool, in hundredths."""
    assert target.memory_bytes is not None
    share = Fraction(max(target.memory_bytes - _system_bytes(target), 0), target.memory_bytes)
    return Fraction(math.floor(100 * share), 100)


def largest_settings(target: Target, settings: PoolSettings) -> PoolSettings | None:
    """Return the settings with a card's largest pool; None if the pool is that large already, or has no such limit."""
    has_share_pool = family_of(target.platform).has_share_pool
    if not (has_share_pool and target.memory_bytes and settings.allocator.is_capped):
        return None
    fraction = largest_fraction(target)
    raised = replace(settings, mem_fraction=float(fraction), origin=fraction_line(float(fraction)))
    is_larger = (pool_bytes_of(target, raised) or 0) > (pool_bytes_of(target, settings) or 0)
    return raised if is_larger else None


def pool_bytes_of(target: Target, settings: PoolSettings) -> int | None:
    """Return the size of the pool on a device; None if the device's memory is unknown."""
    memory_bytes = target.memory_bytes
    if memory_bytes is None or not family_of(target.platform).has_share_pool:
        return target.usable_bytes
    fraction = settings.fraction
    if not settings.allocator.is_capped or (fraction >= 1 and not settings.allocator.has_pieces):
        return max(memory_bytes - _system_bytes(target), 0)
    if settings.unified_memory and settings.allocator.has_pieces:
        return int(memory_bytes * max(fraction, Fraction(1)))
    while fraction >= 1:
        fraction *= _BACKPEDAL
    return int(memory_bytes * fraction)


def card_bytes(limit_bytes: int, settings: PoolSettings) -> int:
    """Return the memory of a card, from the size of its pool, which JAX reports as `bytes_limit`."""
    fraction = settings.fraction
    if settings.unified_memory and settings.allocator.has_pieces:
        fraction = max(fraction, Fraction(1))
    return math.ceil(limit_bytes / fraction)


def judge(
    pieces: Pieces,
    target: Target,
    settings: PoolSettings,
    *,
    reserve_bytes: int = 0,
    pressed: Pieces | None = None,
    refusal: str = "",
) -> Verdict:
    """Judge whether a step fits.

    Args:
        pieces: the pieces of the program without rematerialisation due to memory pressure.
        target: the device, with its memory.
        settings: the settings of JAX's allocator, which matter only for CUDA devices.
        reserve_bytes: memory of the pool that the user wants to keep free.
        pressed: the pieces of the program with that rematerialisation, if any. The sentence says what it changes.
        refusal: the message of the device's compiler if it rejected the program. It overrides the sum of the pieces,
            because the program itself takes memory too, and kernels need memory on the chip.
    """
    if pressed is None:
        verdict = _judge(pieces, target, settings, reserve_bytes)
        return _refused(verdict, pieces, target, refusal) if refusal and verdict.fits else verdict
    verdict = _judge(pieces, target, settings, reserve_bytes, note=" (without XLA's recomputation)")
    under_pressure = _under_pressure(verdict, pressed, target, settings, reserve_bytes)
    return replace(verdict, sentence=f"{verdict.sentence}; {under_pressure}")


def _refused(verdict: Verdict, pieces: Pieces, target: Target, refusal: str) -> Verdict:
    """Return the verdict on a step that fits by its sum, but not with the program's own code, or not on the chip."""
    footprint, usable = format_bytes(pieces.footprint_bytes), format_bytes(target.usable_bytes or 0)
    sentence = (
        f"does not fit: footprint {footprint} of the {usable} that {target.name} gives to programs leaves no room "
        "for the program's own code, so the compiler rejected it"
    )
    if is_about_chip(refusal):
        sentence = (
            f"does not fit: the compiler found too little memory on the chip; the footprint, {footprint}, is within the"
            f" {usable} that {target.name} gives to programs"
        )
    return replace(verdict, answer=Answer.DOES_NOT_FIT, short_bytes=1, sentence=sentence)


def _under_pressure(
    verdict: Verdict, pressed: Pieces, target: Target, settings: PoolSettings, reserve_bytes: int
) -> str:
    """Describe how XLA's recomputation changes a verdict."""
    with_it = f"with it, {format_bytes(pressed.footprint_bytes)}"
    if verdict.answer in (Answer.FITS, Answer.UNKNOWN):
        return with_it
    other = _judge(pressed, target, settings, reserve_bytes)
    line = "" if other.mem_fraction is None else f" with {fraction_line(other.mem_fraction)}"
    if other.answer is Answer.DOES_NOT_FIT:
        return f"{with_it}, which does not fit either"
    return f"{with_it}, which fits{line}"


def _judge(pieces: Pieces, target: Target, settings: PoolSettings, reserve_bytes: int, *, note: str = "") -> Verdict:
    footprint = f"footprint {format_bytes(pieces.footprint_bytes)}{note}"
    size_bytes = pool_bytes_of(target, settings)
    if size_bytes is None:
        amount = amount_in_words(target)
        return Verdict(
            answer=Answer.UNKNOWN,
            pool_bytes=None,
            mem_fraction=None,
            short_bytes=0,
            sentence=f"{footprint}; {target.name} has {amount}",
        )
    assert target.memory_bytes is not None  # otherwise the pool has no size
    pool = _Pool(
        target=target,
        settings=settings,
        memory_bytes=target.memory_bytes,
        size_bytes=max(size_bytes - reserve_bytes, 0),
    )
    short_bytes = pool.missing(pieces)
    if not short_bytes:
        spare = format_bytes(pool.size_bytes - pieces.footprint_bytes)
        beyond = pieces.footprint_bytes - pool.memory_bytes
        unified = f"; {format_bytes(beyond)} of it in host memory, which is slow" if beyond > 0 else ""
        return Verdict(
            answer=Answer.FITS,
            pool_bytes=pool.size_bytes,
            mem_fraction=None,
            short_bytes=0,
            sentence=f"fits: {footprint} of {pool.words(reserve_bytes)}, {spare} to spare{unified}",
        )
    over = f"{footprint} is {format_bytes(short_bytes)} more than {pool.words(reserve_bytes)}"
    if pieces.footprint_bytes <= pool.size_bytes:
        over = (
            f"{footprint} fits {pool.words(reserve_bytes)} in total, but not block by block: in a training loop the "
            f"largest free block is too small, and the pool lacks {format_bytes(short_bytes)}"
        )
    fraction = _smallest_fraction(pieces, pool, reserve_bytes)
    if fraction is not None:
        line = fraction_line(float(fraction))
        old = f" instead of {_OLD_VARIABLE}" if settings.origin.startswith(_OLD_VARIABLE) else ""
        answer, sentence = Answer.FITS_WITH, f"fits with {line}{old}: {over}"
    else:
        answer, sentence = Answer.DOES_NOT_FIT, f"does not fit: {over}{_most(pool)}"
    return Verdict(
        answer=answer,
        pool_bytes=pool.size_bytes,
        mem_fraction=None if fraction is None else float(fraction),
        short_bytes=short_bytes,
        sentence=sentence,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """The pool of a device of `memory_bytes`. `size_bytes` excludes memory that must stay free."""

    target: Target
    settings: PoolSettings
    memory_bytes: int
    size_bytes: int

    @property
    def is_share(self) -> bool:
        """Whether its size depends on the memory fraction."""
        return family_of(self.target.platform).has_share_pool and self.settings.allocator.is_capped

    def missing(self, pieces: Pieces) -> int:
        """Return the bytes by which it is too small for the pieces; 0 if it holds them."""
        if pieces.footprint_bytes > self.size_bytes:
            return pieces.footprint_bytes - self.size_bytes
        if not (self.is_share and self.settings.allocator.has_pieces):
            return 0
        return missing_bytes(pieces, self.size_bytes, grows=not self.settings.preallocate)

    def holds(self, pieces: Pieces, size_bytes: int) -> bool:
        """Whether a pool of the given size would hold the pieces."""
        if pieces.footprint_bytes > size_bytes:
            return False
        if not self.settings.allocator.has_pieces:
            return True
        return fits_in_pool(pieces, size_bytes, grows=not self.settings.preallocate)

    def words(self, reserve_bytes: int) -> str:
        """Describe the pool: `JAX's pool of 29.6 GiB (75% of a100-40gb's 39.4 GiB, the default)`."""
        kept = f", less {format_bytes(reserve_bytes)} kept free" if reserve_bytes else ""
        name, memory = self.target.name, format_bytes(self.memory_bytes)
        if not family_of(self.target.platform).has_share_pool:
            if not self.target.reserved_bytes:
                return f"{memory} of {name}{kept}"
            usable, reserved = format_bytes(self.target.usable_bytes or 0), format_bytes(self.target.reserved_bytes)
            return f"the {usable} that {name} gives to programs ({memory} less {reserved} for its runtime{kept})"
        settings = self.settings
        if not settings.allocator.is_capped:
            return (
                f"the {format_bytes(self.size_bytes)} that {name} can give (XLA_PYTHON_CLIENT_ALLOCATOR="
                f"{settings.allocator.value} has no limit){kept}"
            )
        origin = settings.origin or "the default"
        if settings.fraction >= 1 and not settings.unified_memory:
            origin += ", which XLA lowers in steps of a tenth until the allocation succeeds"
        share = Fraction(self.size_bytes + reserve_bytes, self.memory_bytes)
        if not settings.unified_memory and settings.fraction < 1:
            share = settings.fraction
        unified = ", unified memory" if settings.unified_memory and settings.allocator.has_pieces else ""
        grown = "" if settings.preallocate or not settings.allocator.has_pieces else ", not preallocated"
        return (
            f"JAX's pool of {format_bytes(self.size_bytes)} ({_percent(share)} of {name}'s {memory}, {origin}{unified}"
            f"{grown}{kept})"
        )


def _smallest_fraction(pieces: Pieces, pool: _Pool, reserve_bytes: int) -> Fraction | None:
    """Return the smallest fraction, in hundredths, whose pool holds a step; None if the card is too small for it."""
    if not pool.is_share:
        return None
    needed_bytes = pieces.footprint_bytes + reserve_bytes
    hundredths = math.ceil(Fraction(100 * needed_bytes, pool.memory_bytes))
    # With unified memory the limit is the host's memory, which is unknown here.
    is_unified = pool.settings.unified_memory and pool.settings.allocator.has_pieces
    most = hundredths + 100 if is_unified else int(100 * largest_fraction(pool.target))
    for number in range(max(hundredths, 1), most + 1):
        fraction = Fraction(number, 100)
        if pool.holds(pieces, int(pool.memory_bytes * fraction) - reserve_bytes):
            return fraction
    return None


def _most(pool: _Pool) -> str:
    """Describe the pool with the largest fraction."""
    if not pool.is_share:
        return ""
    fraction = largest_fraction(pool.target)
    size = format_bytes(int(pool.memory_bytes * fraction))
    return f", and {fraction_line(float(fraction))}, the largest that leaves room for CUDA's libraries, gives {size}"


def _system_bytes(target: Target) -> int:
    memory_bytes = target.memory_bytes or 0
    if memory_bytes < _SMALL_CARD_BYTES:
        return min(_SMALL_CARD_SYSTEM_BYTES, memory_bytes)
    major = (target.cuda_capability or (max(_SYSTEM_MEMORY_BYTES), 0))[0]
    return _SYSTEM_MEMORY_BYTES[min(max(major, min(_SYSTEM_MEMORY_BYTES)), max(_SYSTEM_MEMORY_BYTES))]


def fraction_line(fraction: float) -> str:
    """Return the environment setting of a fraction: `XLA_CLIENT_MEM_FRACTION=.92`."""
    return f"{_VARIABLE}={as_written(fraction)}"


def as_written(fraction: Fraction | float) -> str:
    """Format a fraction as JAX's documentation does: `.92`, `1.35`."""
    return f"{float(fraction):.2f}".removeprefix("0")


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.1f}".removesuffix(".0") + "%"
