"""What several views share: cells, tables of shares, groups of categories, names of source lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import shown_source
from memprof.reports.document import Align, Bar, Cell, Column, Note, Row, Shorten, Table, Tone
from memprof.reports.units import format_bytes, format_exact_bytes, format_share, format_signed_bytes

_NOTHING = Cell(text="-", key=Tone.MUTED)
CategoryGroups = Mapping[str, frozenset[Category]]
_REST = "other"  # the last column
CATEGORY_GROUPS: CategoryGroups = {
    column: frozenset(each for each in Category if each.column == column)
    for column in (*dict.fromkeys(each.column for each in Category if each.column != _REST), _REST)
}


def size_cell(size_bytes: int) -> Cell:
    """A size; nothing at all is a quiet dash, so that the eye finds the numbers."""
    return Cell(text=format_bytes(size_bytes)) if size_bytes else _NOTHING


def change_cell(delta_bytes: int, *, none: str = "-") -> Cell:
    """A change with its sign; none at all is muted."""
    if not delta_bytes:
        return aside_cell(none)
    return Cell(text=format_signed_bytes(delta_bytes), key=Tone.GOOD if delta_bytes < 0 else Tone.WARNING)


def aside_cell(text: str) -> Cell:
    """A muted text: a name that is ours, not the program's, or a detail."""
    return Cell(text=text, key=Tone.MUTED)


def more_label(num_left_out: int) -> str:
    """The label of the row that sums up what `top` left out."""
    return f"({num_left_out:,} more)"


def share_table(title: str, sizes: Mapping[str, int], *, nameless: str, top: int, whole: str = "footprint") -> Table:
    """One row per key with its share of the whole.

    Args:
        title: what the keys are.
        sizes: bytes by key.
        nameless: what the empty key is called.
        top: how many rows; the rest is summed up in one.
        whole: what the sizes add up to.
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
    return Table(columns=(name_column, *share_columns()), rows=tuple(rows), total=share_total(whole, total_bytes))


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


def sum_of_group(categories: Mapping[Category, int], group: frozenset[Category]) -> int:
    """The bytes of a group; categories that are not there hold none."""
    return sum(size_bytes for category, size_bytes in categories.items() if category in group)


def group_legend() -> Note:
    """Which categories the groups `temps` and `other` hold."""
    members = (
        f"{name}: {', '.join(category.value for category in Category if category in CATEGORY_GROUPS[name])}"
        for name in ("temps", "other")
    )
    return Note(tone=Tone.MUTED, text=f"{'; '.join(members)}.")


def category_table(categories: Mapping[Category, int]) -> Table:
    """Categories that hold anything, largest first, with what each means where there is room."""
    total_bytes = sum(categories.values())
    rows = [
        Row(
            cells=(
                Cell(text=category.value, key=category),
                *share_cells(size_bytes, total_bytes, category),
                aside_cell(category.meaning),
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


def short_names(sources: Iterable[str]) -> dict[str, str]:
    """What each source line is called: `/home/me/project/net/mlp.py:12` is `net/mlp.py:12` beside `net/loss.py`'s.

    A line of a notebook is `cell 3, line 6`. What is in the report stays whole; this is for display alone.
    """
    sources = tuple(sources)
    folder = common_folder(sources)
    return {"": "", **{source: shown_source(source[len(folder) :]) for source in sources if source}}


def common_folder(sources: Iterable[str]) -> str:
    """The folder that all source lines lie in, with its slash; empty where there is none."""
    split = [source.split("/") for source in sources if source]
    # The last part is the file itself: it always stays.
    levels = zip(*(parts[:-1] for parts in split), strict=False)
    shared = [folders[0] for folders in takewhile(lambda folders: len(set(folders)) == 1, levels)]
    return "".join(f"{folder}/" for folder in shared)
