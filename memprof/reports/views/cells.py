"""The cells and small tables that several views share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memprof.analysis.categories import Category
from memprof.reports.document import Align, Bar, Cell, Column, Row, Shorten, Table, Tone
from memprof.reports.units import format_bytes, format_exact_bytes, format_share, format_signed_bytes

_NOTHING = Cell(text="-", key=Tone.MUTED)


def size_cell(size_bytes: int) -> Cell:
    """A size; nothing at all is a quiet dash, so that the eye finds the numbers."""
    return Cell(text=format_bytes(size_bytes)) if size_bytes else _NOTHING


def change_cell(delta_bytes: int, *, none: str = "-") -> Cell:
    """A change with its sign; none at all is said quietly."""
    if not delta_bytes:
        return aside_cell(none)
    return Cell(text=format_signed_bytes(delta_bytes), key=Tone.GOOD if delta_bytes < 0 else Tone.WARNING)


def aside_cell(text: str) -> Cell:
    """What is said more quietly: a name that is ours, not the program's, or a detail."""
    return Cell(text=text, key=Tone.MUTED)


def more_label(num_left_out: int) -> str:
    """The label of the row that sums up what `top` left out."""
    return f"({num_left_out:,} more)"


def share_table(title: str, sizes: Mapping[str, int], *, nameless: str, top: int) -> Table:
    """One row per key with its share of the footprint.

    Args:
        title: what the keys are.
        sizes: bytes by key; they add up to the footprint.
        nameless: what the empty key is called.
        top: how many rows; the rest is summed up in one.
    """
    total_bytes = sum(sizes.values())
    largest = sorted(((key, size) for key, size in sizes.items() if size), key=lambda item: (-item[1], item[0]))
    rows = [
        _share_row(Cell(text=key) if key else aside_cell(nameless), size, total_bytes) for key, size in largest[:top]
    ]
    rest = [size for _, size in largest[top:]]
    if rest:
        rows.append(_share_row(aside_cell(more_label(len(rest))), sum(rest), total_bytes))
    name_column = Column(title=title, shorten=Shorten.MIDDLE, min_width=16)
    return Table(columns=(name_column, *share_columns()), rows=tuple(rows), total=share_total("footprint", total_bytes))


def share_columns() -> tuple[Column, ...]:
    """The columns that `share_cells` fills."""
    return (
        Column(title="size", align=Align.RIGHT),
        Column(title="share", align=Align.RIGHT),
        Column(title="", priority=1, min_width=12),
        Column(title="bytes", align=Align.RIGHT, priority=2),
    )


def share_cells(size_bytes: int, total_bytes: int, category: Category | None = None) -> Sequence[Cell | Bar]:
    """Size, share, bar and exact bytes."""
    return (
        size_cell(size_bytes),
        Cell(text=format_share(size_bytes, total_bytes)),
        Bar(value=size_bytes, category=category),
        aside_cell(format_exact_bytes(size_bytes)),
    )


def share_total(label: str, total_bytes: int) -> Row:
    """The total under `share_columns`; a bar would only say 100%."""
    return Row(
        cells=(
            Cell(text=label),
            Cell(text=format_bytes(total_bytes)),
            Cell(text=format_share(total_bytes, total_bytes)),
            Cell(text=""),
            Cell(text=format_exact_bytes(total_bytes)),
        )
    )


def _share_row(name: Cell, size_bytes: int, total_bytes: int) -> Row:
    return Row(cells=(name, *share_cells(size_bytes, total_bytes)))
