"""The document: what a report says, without colours, widths or markup.

A view makes a document out of facts; a format lowers it. Blocks follow one another; a table may nest its rows, which
makes it a tree. Text is exactly what the user's program says: escaping is the format's duty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memprof.analysis.records.categories import Category


class Tone(StrEnum):
    """What a text means to the reader, where it is more than plain."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    MUTED = "muted"
    ACCENT = "accent"


class Align(StrEnum):
    """The side of its column that a cell stands on. Numbers stand right."""

    LEFT = "left"
    RIGHT = "right"


class Shorten(StrEnum):
    """How the texts of a column may be cut where room is short."""

    NEVER = "never"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The title of the document (level 1) or of what follows (level 2); `aside` stands beside it in a quieter tone."""

    text: str
    level: int
    aside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of a list of facts: a label and its values, which are never broken inside.

    Attributes:
        are_commands: the values are for a shell to paste: one a line, and a long one goes on as a shell reads it.
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
    """A sentence or two that the reader should not miss."""

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
    """A stack of parts against a capacity (None: there is no fixed one), with the verdict in words.

    Attributes:
        verdict: a sentence; empty if it stands elsewhere.
        with_sizes: the sizes of the largest parts stand below: there is no table of them.
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
        """What the whole width stands for; 0 where there is nothing to draw."""
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
    """Bars on one scale, one below the other, and the capacity (None: there is no common one) that they run up to."""

    bars: tuple[StackedBar, ...]
    capacity_bytes: int | None

    @property
    def shown_capacity_bytes(self) -> int | None:
        """The capacity, unless it would leave more than a quarter of the picture empty."""
        fills_the_picture = self.capacity_bytes and 3 * self.capacity_bytes <= 4 * self._longest_bytes
        return self.capacity_bytes if fills_the_picture else None

    @property
    def scale_bytes(self) -> int:
        """What the whole width stands for: the longest bar or the capacity that is shown."""
        return max(self._longest_bytes, self.shown_capacity_bytes or 0, 1)

    @property
    def _longest_bytes(self) -> int:
        return max((bar.total_bytes for bar in self.bars), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        title: where it is longer than the cells, it may break after a `+`.
        priority: 0 is never dropped; where room is short, the column with the highest number goes first.
        min_width: how far, in characters, its texts may be shortened before a column is dropped.
        below: its cell may stand on a line of its own under the row.
    """

    title: str
    align: Align = Align.LEFT
    priority: int = 0
    shorten: Shorten = Shorten.NEVER
    min_width: int = 8
    below: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text. A format puts the sign of its category before it, and shows its tone.

    Attributes:
        is_verdict: the sign of its tone stands before it too.
        link: where a page of the report shows what it names: `module=layers_0`, `buffer=3` (the third of the report's),
            or the name of a section. Other formats leave it out.
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
    """One row: a cell per column, and the rows that it is made of."""

    cells: tuple[Cell | Bar, ...]
    children: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows, and the total that they add up to (None: they are not parts of anything).

    Attributes:
        continued: columns that do not fit go into a further table below, with the first column again, instead of being
            dropped.
        is_extract: what does not fit is left out without a word, as it stands elsewhere.
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
        """The rows (not those that they are made of) and the total."""
        return (*self.rows, self.total) if self.total else self.rows

    def rows_with_depth(self) -> Iterator[tuple[Row, int]]:
        """Every row, each before those that it is made of, and how deep it is nested."""
        return _with_depth(self.rows, 0)

    def longest_bar(self, index: int) -> int:
        """The value that the full width of a column of bars stands for."""
        cells = (row.cells[index] for row, _ in self.rows_with_depth())
        return max((cell.value for cell in cells if isinstance(cell, Bar)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One step along a stacked chart: the stack, and the band of the ruler that it falls in."""

    parts: tuple[Part, ...]
    band: str

    @property
    def total_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedChart:
    """Stacks over an ordered axis. The highest moment carries the mark; parts stand in the same order everywhere.

    Attributes:
        is_small: a few lines high, and without a legend: what the parts are stands elsewhere.
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
    """The categories that hold anything in any of the stacks: what a legend explains."""
    found = {part.category for parts in stacks for part in parts if part.size_bytes}
    return [category for category in Category if category in found]


def _with_depth(rows: Sequence[Row], depth: int) -> Iterator[tuple[Row, int]]:
    for row in rows:
        yield row, depth
        yield from _with_depth(row.children, depth + 1)
