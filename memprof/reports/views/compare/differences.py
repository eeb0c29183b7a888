"""Where the differences come from: one row per key, one column per configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from memprof.analysis.categories import Category
from memprof.reports.document import Align, Cell, Column, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_signed_bytes
from memprof.reports.views.cells import aside_cell, change_cell, more_label, size_cell
from memprof.reports.views.compare.rows import ComparedRow

Key = TypeVar("Key", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What belongs to one key: its bytes in each of the compared rows, in their order, and what it is made of."""

    label: Cell
    sizes: tuple[int, ...]
    children: tuple[Share, ...] = ()


def shares_by(sizes: Sequence[Mapping[Key, int]], *, label: Callable[[Key], Cell]) -> tuple[Share, ...]:
    """One share per key that holds anything in any row.

    Args:
        sizes: for each row, bytes by key.
        label: what a key is called.
    """
    keys = dict.fromkeys(key for row in sizes for key in row)
    shares = (Share(label=label(key), sizes=tuple(row.get(key, 0) for row in sizes)) for key in keys)
    return tuple(share for share in shares if any(share.sizes))


def difference_table(title: str, shares: Sequence[Share], rows: Sequence[ComparedRow], *, top: int) -> Table:
    """The reference's sizes, then what each row changes; the largest change first. The total is the footprint.

    Args:
        title: what the keys are.
        shares: they add up to the footprint, row by row.
        top: keys on each level; the rest is one row.
    """
    footprints = tuple(row.report.footprint_bytes for row in rows)
    assert _together(shares, len(rows)) == footprints, "shares add up to the footprint"
    reference = next(index for index, row in enumerate(rows) if row.is_reference)
    others = [index for index in range(len(rows)) if index != reference]
    columns = (Column(title=rows[index].name, align=Align.RIGHT) for index in (reference, *others))
    total = (format_signed_bytes(footprints[index] - footprints[reference]) for index in others)
    return Table(
        columns=(Column(title=title, shorten=Shorten.MIDDLE, min_width=16), *columns),
        rows=_rows(shares, reference, others, top=top),
        total=Row(
            cells=(
                Cell(text="footprint"),
                Cell(text=format_bytes(footprints[reference])),
                *(Cell(text=text) for text in total),
            )
        ),
        continued=True,
    )


def category_label(category: Category) -> Cell:
    """A category with its letter."""
    return Cell(text=category.value, key=category)


def _rows(shares: Sequence[Share], reference: int, others: Sequence[int], *, top: int) -> tuple[Row, ...]:
    def importance(share: Share) -> tuple[int, int]:
        here = share.sizes[reference]
        return max((abs(share.sizes[index] - here) for index in others), default=0), here

    ranked = sorted(shares, key=importance, reverse=True)
    rest = ranked[top:]
    if rest:
        together = _together(rest, len(others) + 1)
        ranked = [*ranked[:top], Share(label=aside_cell(more_label(len(rest))), sizes=together)]
    return tuple(
        Row(
            cells=(
                share.label,
                size_cell(share.sizes[reference]),
                *(change_cell(share.sizes[index] - share.sizes[reference]) for index in others),
            ),
            children=_rows(share.children, reference, others, top=top),
        )
        for share in ranked
    )


def _together(shares: Sequence[Share], num_rows: int) -> tuple[int, ...]:
    return tuple(sum(share.sizes[index] for share in shares) for index in range(num_rows))
