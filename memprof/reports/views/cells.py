"""Parts that several views share: cells, tables of shares, groups of categories, names of source lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import shown_source
from memprof.reports.document import Align, Bar, Cell, Column, Fact, Facts, Note, Row, Shorten, Table, Tone
from memprof.reports.units import format_bytes, format_exact_bytes, format_share, format_signed_bytes

_NOTHING = Cell(text="-", key=Tone.MUTED)
CategoryGroups = Mapping[str, frozenset[Category]]
_REST = "other"  # always the last column
CATEGORY_GROUPS: CategoryGroups = {
    column: frozenset(each for each in Category if each.column == column)
    for column in (*dict.fromkeys(each.column for each in Category if each.column != _REST), _REST)
}


def size_cell(size_bytes: int) -> Cell:
    """Make a cell of a size. Zero is a muted dash, so that nonzero sizes stand out."""
    return Cell(text=format_bytes(size_bytes)) if size_bytes else _NOTHING


def change_cell(delta_bytes: int, *, none: str = "-") -> Cell:
    """Make a cell of a signed change. Zero is a muted `none`."""
    if not delta_bytes:
        return aside_cell(none)
    return Cell(text=format_signed_bytes(delta_bytes), key=Tone.GOOD if delta_bytes < 0 else Tone.WARNING)


def aside_cell(text: str) -> Cell:
    """Make a cell of a muted text: a detail, or a name that comes from memprof instead of the program."""
    return Cell(text=text, key=Tone.MUTED)


def category_cell(category: Category) -> Cell:
    """Make a cell of a category, with its letter."""
    return Cell(text=category.value, key=category)


def facts_of(values: Mapping[str, Sequence[str]]) -> Facts:
    """Make a list of facts from their values by label. Facts without values are left out."""
    return Facts(facts=tuple(Fact(label=label, values=tuple(each)) for label, each in values.items() if each))


def exact_size(size_bytes: int, *more: str) -> tuple[str, ...]:
    """Return the values of a size as a fact: rounded, with all digits, and `more` about it."""
    return (format_bytes(size_bytes), f"{format_exact_bytes(size_bytes)} bytes", *more)


def more_label(num_left_out: int) -> str:
    """Return the label of the row that sums up the rows beyond `top`."""
    return f"({num_left_out:,} more)"


def share_table(title: str, sizes: Mapping[str, int], *, nameless: str, top: int, whole: str = "footprint") -> Table:
    """Build a table with one row for each key and its share of the total.

    Args:
        title: the title of the keys.
        sizes: sizes in bytes, by key.
        nameless: the displayed name of the empty key.
        top: the number of rows; the rest is summed up in one.
        whole: the name of the total.
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
    """Return the columns that `share_cells` fills."""
    return (
        Column(title="size", align=Align.RIGHT),
        Column(title="share", align=Align.RIGHT),
        Column(title="", priority=1, min_width=12),
        Column(title="bytes", align=Align.RIGHT, priority=2),
    )


def share_cells(size_bytes: int, total_bytes: int, category: Category | None = None) -> Sequence[Cell | Bar]:
    """Make the cells of a size: rounded size, share, bar and exact bytes."""
    return (
        size_cell(size_bytes),
        Cell(text=format_share(size_bytes, total_bytes)),
        Bar(value=size_bytes, category=category),
        aside_cell(format_exact_bytes(size_bytes)),
    )


def share_total(label: str, total_bytes: int) -> Row:
    """Make the total row for `share_columns`, without a bar, which would always be full."""
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
    """Sum the bytes of a group of categories. Absent categories count as zero."""
    return sum(size_bytes for category, size_bytes in categories.items() if category in group)


def group_legend() -> Note:
    """Explain which categories the groups `temps` and `other` contain."""
    members = (
        f"{name}: {', '.join(category.value for category in Category if category in CATEGORY_GROUPS[name])}"
        for name in ("temps", "other")
    )
    return Note(tone=Tone.MUTED, text=f"{'; '.join(members)}.")


def category_table(categories: Mapping[Category, int]) -> Table:
    """Build a table of the nonempty categories, largest first, with their meanings if there is room."""
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
    """Return short names of source lines, relative to the folder that all of them share.

    For example, `/home/me/project/net/mlp.py:12` is `net/mlp.py:12` if the other line is in `/home/me/project/loss.py`.
    A line of a notebook is `cell 3, line 6`. These names are for display only; the report keeps full paths.
    """
    sources = tuple(sources)
    folder = common_folder(sources)
    return {"": "", **{source: shown_source(source[len(folder) :]) for source in sources if source}}


def common_folder(sources: Iterable[str]) -> str:
    """Return the deepest folder that contains all source lines, with its slash; empty if there is none."""
    split = [source.split("/") for source in sources if source]
    # The last part is the file name, which is always kept.
    levels = zip(*(parts[:-1] for parts in split), strict=False)
    shared = [folders[0] for folders in takewhile(lambda folders: len(set(folders)) == 1, levels)]
    return "".join(f"{folder}/" for folder in shared)
