"""What a step may take of a device: the pool that JAX has there, and the arithmetic of a step that takes more."""

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
from memprof.sources.pool_settings import pool_settings
from memprof.studies.fit.search import NothingFitsError


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What memory is asked for, as the user wrote it.

    Attributes:
        target: what to compile for; None: the best there is.
        memory: the device's memory; None: that of the target.
        reserve: an amount or a share of the memory that must stay free in the pool; None: nothing.
        pool: the settings of JAX's allocator to judge by; None: those of each capture.
    """

    target: Target | None
    memory: str | None
    reserve: str | None
    pool: PoolSettings | None = None

    def check(self) -> None:
        """Raise `MemprofError` for the mistakes that show before the target is at hand."""
        if self.target is not None and family_of(self.target.platform).is_host and self.memory is None:
            raise MemprofError("the CPU has no fixed amount of memory; say with --memory what must suffice")
        if self.target is not None and self.target.memory_bytes is not None:
            self.budget(self.target, pool_settings(self.target))
        elif self.memory is not None:
            self._kept_bytes(parse_bytes(self.memory))

    def budget(self, target: Target, settings: PoolSettings) -> Budget:
        """The pool, and what of it must stay free.

        Args:
            target: that the step was compiled for.
            settings: of the allocator where it was compiled.

        Raises:
            MemprofError: an amount cannot be read, is not known, or leaves nothing.
        """
        if self.memory is not None:
            target = target.with_memory(parse_bytes(self.memory))
        memory_bytes = target.memory_bytes
        if memory_bytes is None:
            raise MemprofError("the target has no fixed amount of memory; say with --memory what must suffice")
        budget = Budget(
            target=target,
            settings=self.pool or settings,
            kept_bytes=self._kept_bytes(memory_bytes),
            is_chosen=self.pool is not None,
        )
        if budget.size_bytes <= 0 and not budget.kept_bytes:
            raise MemprofError(f"{memory_bytes:,} bytes leave no room beside the CUDA context: give more with --memory")
        if budget.size_bytes <= 0:
            raise _leaves_nothing(budget.kept_bytes, budget.size_bytes + budget.kept_bytes, "pool")
        return budget

    def _kept_bytes(self, memory_bytes: int) -> int:
        """What must stay free.

        Raises:
            MemprofError: it is no amount, or as much as there is.
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
    """The pool of a device, of which some bytes stay free.

    Attributes:
        target: the device, with the memory that the user gives it.
        kept_bytes: what the user wants to stay free of the pool.
        is_chosen: whether the user has chosen the pool's size, so that another one is no answer.
    """

    target: Target
    settings: PoolSettings
    kept_bytes: int = 0
    is_chosen: bool = False

    @property
    def memory_bytes(self) -> int:
        """The whole device."""
        return self.target.memory_bytes or 0

    @property
    def size_bytes(self) -> int:
        """What a footprint must not exceed."""
        return (pool_bytes_of(self.target, self.settings) or 0) - self.kept_bytes

    @property
    def largest(self) -> Budget | None:
        """The budget with the largest pool that the card can give; None if this one is as large."""
        settings = None if self.is_chosen else largest_settings(self.target, self.settings)
        return None if settings is None else replace(self, settings=settings)

    def verdict(self, report: Report) -> Verdict:
        """Whether a step fits."""
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
        """The footprint, or the pool that a step needs which fits by its footprint alone."""
        return max(report.pieces.footprint_bytes, self.verdict(report).needed_bytes or 0)

    def check_params_fit(self, report: Report) -> None:
        """Raise `NothingFitsError` where the parameters alone are too much, whatever the batch and the techniques."""
        if report.categories[Category.PARAMS] > (self.largest or self).size_bytes:
            raise NothingFitsError(f"the parameters alone do not fit: {self.arithmetic(report)}")

    def arithmetic(self, report: Report) -> str:
        """What a footprint is made of, against what there is."""
        params, optimizer = report.categories[Category.PARAMS], report.categories[Category.OPTIMIZER_STATE]
        footprint_bytes = report.unpressed.footprint_bytes
        others = footprint_bytes - params - optimizer
        return (
            f"params {params:,} + optimizer state {optimizer:,} + everything else {others:,} ="
            f" {footprint_bytes:,} bytes; {self.verdict(report).sentence}"
        )
