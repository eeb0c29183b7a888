"""The document: the content of a report, without colours, widths or markup.

A view builds a document from facts; a format lowers it. A document is a sequence of blocks. A table may nest its rows,
which makes it a tree. Texts are the user's own, unescaped: each format escapes them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memprof.analysis.records.categories import Category


class Tone(StrEnum):
    """The meaning of a text to the reader; plain text has no tone."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    MUTED = "muted"
    ACCENT = "accent"


class Align(StrEnum):
    """The alignment of a cell in its column. Numbers are aligned right."""

    LEFT = "left"
    RIGHT = "right"


class Shorten(StrEnum):
    """How the texts of a column may be shortened if room is short."""

    NEVER = "never"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The title of the document (level 1) or of a section (level 2). `aside` follows it in a muted tone."""

    text: str
    level: int
    aside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of a list of facts: a label and its values. Lines break between values.

    Attributes:
        are_commands: whether the values are shell commands to paste: one on each line, and a long one continues on the
            next line with a backslash.
    """

    label: str
    values: tuple[str, ...]
    are_commands: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Labelled values, one below the other."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One or two sentences that the reader should not miss."""

    text: str
    tone: Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Lines of Python to paste: never wrapped, never shortened."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a stack, in bytes."""

    category: Category
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A stack of parts compared with a capacity (None: there is no fixed one), with the verdict in words.

    Attributes:
        verdict: a sentence; empty if the document shows it elsewhere.
        with_sizes: whether the sizes of the largest parts are listed below, because the document has no table of them.
    """

    parts: tuple[Part, ...]
    capacity_bytes: int | None
    verdict: str
    tone: Tone
    with_sizes: bool = False

    @property
    def total_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def scale_bytes(self) -> int:
        """The bytes that the full width represents; 0 if the gauge is empty."""
        return max(self.total_bytes, self.capacity_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBar:
    """One row of a bar chart: a label, a stack of parts (none: an empty bar), and its size in words."""

    label: str
    parts: tuple[Part, ...]
    size: str

    @property
    def total_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBars:
    """Bars on one scale, one below the other, with the capacity that they share (None: there is no common one)."""

    bars: tuple[StackedBar, ...]
    capacity_bytes: int | None

    @property
    def shown_capacity_bytes(self) -> int | None:
        """The capacity, unless it would leave more than a quarter of the picture empty."""
        fills_the_picture = self.capacity_bytes and 3 * self.capacity_bytes <= 4 * self._longest_bytes
        return self.capacity_bytes if fills_the_picture else None

    @property
    def scale_bytes(self) -> int:
        """The bytes that the full width represents: the longest bar, or the shown capacity if that is larger."""
        return max(self._longest_bytes, self.shown_capacity_bytes or 0, 1)

    @property
    def _longest_bytes(self) -> int:
        return max((bar.total_bytes for bar in self.bars), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        title: a title that is longer than the cells may break after a `+`.
        priority: if room is short, the column with the highest number is dropped first; 0 is never dropped.
        min_width: the width in characters to which texts may be shortened before a column is dropped.
        below: whether its cell may move to a separate line under the row.
    """

    title: str
    align: Align = Align.LEFT
    priority: int = 0
    shorten: Shorten = Shorten.NEVER
    min_width: int = 8
    below: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text. A format prefixes it with the sign of its category, and shows its tone.

    Attributes:
        key: the category or tone of the text; None if it is plain.
        is_verdict: whether the text is also prefixed with the sign of its tone.
        link: the place on an HTML page that shows the named item: `module=layers_0`, `buffer=3` (the report's third
            buffer), or the name of a section. Other formats omit it.
    """

    text: str
    key: Category | Tone | None = None
    is_verdict: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A length, relative to the longest bar of its column."""

    value: int
    category: Category | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: a cell for each column, and the rows that it consists of."""

    cells: tuple[Cell | Bar, ...]
    children: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows, and the total that they add up to (None: they are not parts of a whole).

    Attributes:
        continued: whether columns that do not fit continue in another table below, which repeats the first column,
            instead of being dropped.
        is_extract: whether dropped columns are omitted without a notice, because the document shows them elsewhere.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: Row | None = None
    continued: bool = False
    is_extract: bool = False

    def __post_init__(self) -> None:
        assert all(len(row.cells) == len(self.columns) for row in self.all_rows), "a cell per column"

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The top-level rows and the total."""
        return (*self.rows, self.total) if self.total else self.rows

    def rows_with_depth(self) -> Iterator[tuple[Row, int]]:
        """Yield every row with its nesting depth, parents before children."""
        return _with_depth(self.rows, 0)

    def longest_bar(self, index: int) -> int:
        """Return the value that the full width of a column of bars represents."""
        cells = (row.cells[index] for row, _ in self.rows_with_depth())
        return max((cell.value for cell in cells if isinstance(cell, Bar)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One step along a stacked chart: its stack, and the band of the ruler that it belongs to."""

    parts: tuple[Part, ...]
    band: str

    @property
    def total_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedChart:
    """Stacks over an ordered axis. The mark labels the highest moment; parts have the same order in all stacks.

    Attributes:
        is_small: whether the chart is only a few lines high and has no legend, because the document has one elsewhere.
    """

    moments: tuple[Moment, ...]
    mark: str
    is_small: bool = False


Block = Heading | Facts | Note | Code | Gauge | StackedBars | Table | StackedChart


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Blocks in reading order."""

    blocks: tuple[Block, ...]


def categories_of(stacks: Iterable[Sequence[Part]]) -> list[Category]:
    """Return the categories with bytes in any of the stacks: the entries of a legend."""
    found = {part.category for parts in stacks for part in parts if part.size_bytes}
    return [category for category in Category if category in found]


def _with_depth(rows: Sequence[Row], depth: int) -> Iterator[tuple[Row, int]]:
    for row in rows:
        yield row, depth
        yield from _with_depth(row.children, depth + 1)
