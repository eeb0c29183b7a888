"""What a step may take of a device's memory, and the arithmetic of a step that takes more."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from memprof.amounts import parse_bytes, parse_share
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.studies.fit.search import NothingFitsError

DEFAULT_RESERVE = Fraction(6, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What memory is asked for, as the user wrote it.

    Attributes:
        target: what to compile for; None: the best there is.
        memory: the device's memory; None: that of the target.
        reserve: an amount or a share of the memory that must stay free; None: `DEFAULT_RESERVE`.
    """

    target: Target | None
    memory: str | None
    reserve: str | None

    def check(self) -> None:
        """Raises `MemprofError` for the mistakes that show before the target is at hand."""
        if self.target is not None and self.target.platform == "cpu" and self.memory is None:
            raise MemprofError("the CPU has no fixed amount of memory; say with --memory what must suffice")
        known_bytes = self.target.memory_bytes if self.target is not None else None
        if self.memory is not None or known_bytes is not None:
            self.budget(known_bytes)

    def budget(self, target_memory_bytes: int | None) -> Budget:
        """The memory, and what of it must stay free.

        Args:
            target_memory_bytes: of the target; None where it has no fixed amount.

        Raises:
            MemprofError: an amount cannot be read, is not known, or leaves nothing.
        """
        memory_bytes = parse_bytes(self.memory) if self.memory is not None else target_memory_bytes
        if memory_bytes is None:
            raise MemprofError("the target has no fixed amount of memory; say with --memory what must suffice")
        share = DEFAULT_RESERVE if self.reserve is None else parse_share(self.reserve)
        if self.reserve in ("0", "none"):
            share = Fraction(0)
        reserve_bytes = parse_bytes(self.reserve or "") if share is None else int(memory_bytes * share)
        if reserve_bytes >= memory_bytes:
            raise MemprofError(
                f"the reserve of {reserve_bytes:,} bytes leaves nothing of the memory of {memory_bytes:,}; make it"
                " smaller"
            )
        reason = (
            "6% for what lies outside XLA's pool, an estimate that is not measured on this device; --reserve changes it"
            if self.reserve is None
            else f"as asked for with --reserve {self.reserve}"
        )
        return Budget(memory_bytes=memory_bytes, reserve_bytes=reserve_bytes, reserve_reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory of which a reserve stays free; `reserve_reason` says in one sentence where that comes from."""

    memory_bytes: int
    reserve_bytes: int
    reserve_reason: str

    @property
    def size_bytes(self) -> int:
        """What a footprint must not exceed."""
        return self.memory_bytes - self.reserve_bytes

    def check_params_fit(self, report: Report) -> None:
        """Raises `NothingFitsError` where the parameters alone are too much, whatever the batch and the techniques."""
        if report.categories[Category.PARAMS] > self.size_bytes:
            raise NothingFitsError(f"the parameters alone do not fit: {self.arithmetic(report)}")

    def arithmetic(self, report: Report) -> str:
        """What a footprint is made of, against what there is."""
        params, optimizer = report.categories[Category.PARAMS], report.categories[Category.OPTIMIZER_STATE]
        others = report.footprint_bytes - params - optimizer
        return (
            f"params {params:,} + optimizer state {optimizer:,} + everything else {others:,} ="
            f" {report.footprint_bytes:,} bytes, but memory {self.memory_bytes:,} - reserve {self.reserve_bytes:,} ="
            f" {self.size_bytes:,}"
        )
