"""The document of a comparison: everything on one page, or where the differences come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memprof.analysis.categories import Category
from memprof.analysis.comparison import Comparison, FailedRow
from memprof.errors import MemprofError
from memprof.reports.choices import By, Order
from memprof.reports.document import Block, Cell, Document, Heading
from memprof.reports.views.by import phase_name
from memprof.reports.views.cells import aside_cell
from memprof.reports.views.compare import header
from memprof.reports.views.compare.bars import footprint_bars
from memprof.reports.views.compare.differences import Share, category_label, difference_table, shares_by
from memprof.reports.views.compare.modules import module_shares
from memprof.reports.views.compare.rows import ComparedRow, compared_rows, row_name
from memprof.reports.views.compare.table import configuration_table
from memprof.reports.views.compare.verdicts import effect_blocks, failure_blocks, notes
from memprof.reports.views.groups import group_legend
from memprof.reports.views.sources import short_names


def comparison_document(
    comparison: Comparison, *, by: By | None, depth: int, top: int, order: Order, with_differences: bool = False
) -> Document:
    """The whole comparison, or the differences by one key alone.

    Args:
        comparison: the facts.
        by: what the differences are added up by; None for the whole.
        depth: levels, where `by` is the module.
        top: rows of the table of differences; the rest is summed up in one.
        order: how the configurations follow one another.
        with_differences: whether the whole has the differences by category and by module too, where there is room.

    Raises:
        MemprofError: there is no view of a comparison by `by`.
    """
    rows = compared_rows(comparison, order)
    failures = tuple(replace(failure, label=row_name(comparison, failure.label)) for failure in comparison.failures)
    if not rows:
        return Document(blocks=(header.title(comparison), *failure_blocks(failures)))
    body = _whole(rows, failures) if by is None else difference_blocks(rows, by=by, depth=depth, top=top)
    if with_differences and by is None and len(rows) > 1:
        for key in (By.CATEGORY, By.MODULE):
            body += difference_blocks(rows, by=key, depth=depth, top=top)
    return Document(
        blocks=(
            header.title(comparison),
            *body,
            *failure_blocks(failures),
            *(header.shared_config(rows) if by is None else ()),
            Heading(text="Notes", level=2),
            *notes(comparison, rows),
        )
    )


def _whole(rows: Sequence[ComparedRow], failures: Sequence[FailedRow]) -> tuple[Block, ...]:
    return (
        header.setup_facts(rows),
        Heading(text="Footprint", level=2, aside="what the allocator must hold to run the step"),
        footprint_bars(rows),
        Heading(text="Configurations", level=2, aside=f"change and ratio against {_reference(rows).name}"),
        configuration_table(rows, failures),
        group_legend(),
        *effect_blocks(rows),
    )


def difference_blocks(rows: Sequence[ComparedRow], *, by: By, depth: int, top: int) -> tuple[Block, ...]:
    """The reference's sizes by one key, and what the other rows change.

    Raises:
        MemprofError: there is no view of a comparison by `by`.
    """
    name = _reference(rows).name
    top = max(top, len(Category)) if by is By.CATEGORY else top  # there are never too many of them
    return (
        Heading(text=f"Differences by {by.value}", level=2, aside=f"sizes of {name}, and what the others change"),
        difference_table(by.value, _shares(rows, by=by, depth=depth), rows, top=top),
    )


def _shares(rows: Sequence[ComparedRow], *, by: By, depth: int) -> tuple[Share, ...]:
    reports = [row.report for row in rows]
    match by:
        case By.CATEGORY:
            return shares_by([report.categories for report in reports], label=category_label)
        case By.MODULE:
            return module_shares([report.modules for report in reports], depth=depth)
        case By.SOURCE:
            names = short_names(source for report in reports for source in report.by_source)
            return shares_by([report.by_source for report in reports], label=lambda source: _name(names[source], by))
        case By.DTYPE:
            return shares_by([report.by_dtype for report in reports], label=lambda dtype: _name(dtype, by))
        case By.PHASE:
            return shares_by([report.by_phase for report in reports], label=lambda phase: _name(phase_name(phase), by))
        case By.BUFFER:
            raise MemprofError(
                "Buffers of several programs cannot be shown side by side. Compare by category, module, source, dtype "
                "or phase; `memprof show A.memprof --diff B.memprof` matches the buffers of two captures."
            )


def _name(name: str, by: By) -> Cell:
    return Cell(text=name) if name else aside_cell(f"(no {by.value})")


def _reference(rows: Sequence[ComparedRow]) -> ComparedRow:
    return next(row for row in rows if row.is_reference)
