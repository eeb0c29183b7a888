"""What the footprint is made of, category by category."""

from __future__ import annotations

from collections.abc import Mapping

from memprof.analysis.categories import CATEGORY_MEANINGS, Category
from memprof.reports.document import Cell, Column, Row, Shorten, Table
from memprof.reports.views.cells import aside_cell, share_cells, share_columns, share_total


def category_table(categories: Mapping[Category, int]) -> Table:
    """Categories that hold anything, largest first, with what each means where there is room."""
    total_bytes = sum(categories.values())
    rows = [
        Row(
            cells=(
                Cell(text=category.value, key=category),
                *share_cells(size_bytes, total_bytes, category),
                aside_cell(CATEGORY_MEANINGS[category]),
            )
        )
        for category, size_bytes in sorted(categories.items(), key=lambda item: -item[1])
        if size_bytes
    ]
    meaning = Column(title="meaning", priority=3, shorten=Shorten.END, min_width=28)
    total = share_total("footprint", total_bytes)
    return Table(
        columns=(Column(title="category"), *share_columns(), meaning),
        rows=tuple(rows),
        total=Row(cells=(*total.cells, Cell(text=""))),
    )
