"""The memory that a step may use on a device: JAX's pool there, and the arithmetic of a step that exceeds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from memprof.amounts import parse_bytes, parse_share
from memprof.analysis.memory.card import judge_engine, judge_reserved
from memprof.analysis.memory.verdict import judge, largest_settings, pool_bytes_of
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.pool import PoolSettings, Verdict
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.sources.jax.targets.resolve import AskedTarget, if_known
from memprof.sources.pool_settings import pool_settings
from memprof.studies.fit.search import NothingFitsError


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """The requested memory, as the user wrote it.

    Attributes:
        target: the target to compile for; None means the best available.
        memory: the device's memory; None means that of the target.
        reserve: amount or share of the memory that must stay free in the pool; None means nothing.
        pool: the settings of JAX's allocator to judge by; None means those of each capture.
    """

    target: AskedTarget
    memory: str | None
    reserve: str | None
    pool: PoolSettings | None = None

    def check(self) -> None:
        """Raise `MemprofError` for mistakes that are found before the target is known."""
        target = if_known(self.target)
        if target is not None and family_of(target.platform).is_host and self.memory is None:
            raise MemprofError("the CPU has no fixed amount of memory; give one with --memory")
        if target is not None and target.memory_bytes is not None:
            self.budget(target, pool_settings(target))
        elif self.memory is not None:
            self._kept_bytes(parse_bytes(self.memory))

    def budget(self, target: Target, settings: PoolSettings) -> Budget:
        """Return the pool, and its part that must stay free.

        Args:
            target: the target that the step was compiled for.
            settings: settings of the allocator where the step was compiled.

        Raises:
            MemprofError: an amount cannot be parsed, is unknown, or leaves no memory.
        """
        if self.memory is not None:
            target = target.with_memory(parse_bytes(self.memory))
        memory_bytes = target.memory_bytes
        if memory_bytes is None:
            raise MemprofError("the target has no fixed amount of memory; give one with --memory")
        budget = Budget(
            target=target,
            settings=self.pool or settings,
            kept_bytes=self._kept_bytes(memory_bytes),
            is_chosen=self.pool is not None,
        )
        if budget.size_bytes <= 0 and not budget.kept_bytes:
            raise MemprofError(f"{memory_bytes:,} bytes are not enough for the CUDA context: give more with --memory")
        if budget.size_bytes <= 0:
            raise _leaves_nothing(budget.kept_bytes, budget.size_bytes + budget.kept_bytes, "pool")
        return budget

    def _kept_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that must stay free.

        Raises:
            MemprofError: the text is not an amount, or the amount is not less than the memory.
        """
        share = Fraction(0) if self.reserve in (None, "0", "none") else parse_share(self.reserve or "")
        kept_bytes = parse_bytes(self.reserve or "") if share is None else int(memory_bytes * share)
        if kept_bytes >= memory_bytes:
            raise _leaves_nothing(kept_bytes, memory_bytes, "memory")
        return kept_bytes


def _leaves_nothing(kept_bytes: int, size_bytes: int, what: str) -> MemprofError:
    return MemprofError(
        f"the reserve of {kept_bytes:,} bytes leaves nothing of the {what} of {size_bytes:,}; make it smaller"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The pool of a device, with some bytes that stay free.

    Attributes:
        target: the device, with the memory that the user gives it.
        kept_bytes: bytes of the pool that the user wants to stay free.
        is_chosen: whether the user has chosen the pool's size, so that another size is not an answer.
    """

    target: Target
    settings: PoolSettings
    kept_bytes: int = 0
    is_chosen: bool = False

    @property
    def memory_bytes(self) -> int:
        """The memory of the whole device."""
        return self.target.memory_bytes or 0

    @property
    def size_bytes(self) -> int:
        """The largest footprint that fits."""
        return (pool_bytes_of(self.target, self.settings) or 0) - self.kept_bytes

    @property
    def largest(self) -> Budget | None:
        """The budget with the largest pool that the card can give; None if this one is as large."""
        settings = None if self.is_chosen else largest_settings(self.target, self.settings)
        return None if settings is None else replace(self, settings=settings)

    def verdict(self, report: Report) -> Verdict:
        """Return whether a step fits."""
        if report.allocator is not None:
            return judge_reserved(report.footprint_bytes, self.target.with_less(self.kept_bytes))
        if report.engine_figures is not None:
            return judge_engine(report.footprint_bytes, self.target.with_less(self.kept_bytes))
        return judge(
            report.pieces,
            self.target,
            self.settings,
            reserve_bytes=self.kept_bytes,
            pressed=report.pressed_pieces,
        )

    def needed_bytes(self, report: Report) -> int:
        """Return the footprint, or the pool that a step needs if it fits by its footprint by itself."""
        return max(report.pieces.footprint_bytes, self.verdict(report).needed_bytes or 0)

    def check_params_fit(self, report: Report) -> None:
        """Raise `NothingFitsError` if the parameters alone exceed the budget, for any batch and techniques."""
        if report.categories[Category.PARAMS] > (self.largest or self).size_bytes:
            raise NothingFitsError(f"the parameters alone do not fit: {self.arithmetic(report)}")

    def arithmetic(self, report: Report) -> str:
        """Return the parts of a footprint, and the available memory, in a sentence."""
        params, optimizer = report.categories[Category.PARAMS], report.categories[Category.OPTIMIZER_STATE]
        footprint_bytes = report.unpressed.footprint_bytes
        others = footprint_bytes - params - optimizer
        return (
            f"params {params:,} + optimizer state {optimizer:,} + everything else {others:,} ="
            f" {footprint_bytes:,} bytes; {self.verdict(report).sentence}"
        )
