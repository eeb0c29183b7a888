"""The rows of a comparison, in the order and under the names that a reader sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.analysis.comparison import Comparison, Effect
from memprof.analysis.report import Report
from memprof.reports.choices import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One configuration. `name` is its label without the workload, where all rows have the same."""

    name: str
    report: Report
    effect: Effect
    is_reference: bool


def compared_rows(comparison: Comparison, order: Order) -> tuple[ComparedRow, ...]:
    """The rows with their effects, as given or the smallest footprint first."""
    rows = tuple(
        ComparedRow(
            name=row_name(comparison, report.label),
            report=report,
            effect=effect,
            is_reference=report.label == comparison.baseline,
        )
        for report, effect in zip(comparison.rows, comparison.effects, strict=True)
    )
    for row in rows:
        assert sum(row.effect.categories_delta.values()) == row.effect.footprint_delta_bytes, row.name
    return rows if order is Order.GIVEN else tuple(sorted(rows, key=lambda row: row.report.footprint_bytes))


def row_name(comparison: Comparison, label: str) -> str:
    """`bf16+scan` for `transformer bf16+scan`, unless another row is no transformer."""
    prefixes = {f"{row.workload} " for row in comparison.rows}
    if len(prefixes) != 1 or not all(_is_long(row.label, *prefixes) for row in comparison.rows):
        return label
    (prefix,) = prefixes
    return label.removeprefix(prefix) if _is_long(label, prefix) else label


def common_capacity(rows: Sequence[ComparedRow]) -> int | None:
    """The memory of the target, if all rows have the same and it is a fixed amount."""
    capacities = {row.report.target.memory_bytes for row in rows}
    return capacities.pop() if len(capacities) == 1 else None


def _is_long(label: str, prefix: str) -> bool:
    return label.startswith(prefix) and label != prefix
