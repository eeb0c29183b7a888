"""Blocks laid out as lines."""

from __future__ import annotations

from dataclasses import replace

from memprof.analysis.records.categories import Category
from memprof.reports.document import (
    Align,
    Bar,
    Block,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Gauge,
    Heading,
    Moment,
    Note,
    Part,
    Row,
    Shorten,
    StackedBar,
    StackedBars,
    StackedChart,
    Table,
    Tone,
)
from memprof.reports.layout.lines import Paper
from memprof.reports.layout.page import page_lines


def _texts(block: Block, *, width: int, unicode: bool = False) -> list[str]:
    lines = page_lines(Document(blocks=(block,)), Paper(width=width, unicode=unicode))
    return ["".join(span.text for span in line) for line in lines]


def _parts(**sizes: int) -> tuple[Part, ...]:
    return tuple(Part(category=Category(name), size_bytes=size) for name, size in sizes.items())


def test_headings() -> None:
    assert _texts(Heading(text="Title", level=1, aside="memprof"), width=30) == ["Title  memprof"]
    assert _texts(Heading(text="Part", level=2), width=20) == ["", "-- Part ------------"]
    assert _texts(Heading(text="Part", level=2, aside="why"), width=20) == ["", "-- Part -- why -----"]


def test_an_aside_goes_where_it_does_not_fit() -> None:
    assert _texts(Heading(text="Part", level=2, aside="a long story"), width=20) == ["", "-- Part ------------"]


def test_facts_break_between_values_and_shorten_what_is_longer_than_a_line() -> None:
    facts = Facts(
        facts=(
            Fact(label="size", values=("1.50 GiB", "24 bytes", "x")),
            Fact(label="name", values=("abcdefghijklmnopqrstuvwxyz",)),
        )
    )
    assert _texts(facts, width=20) == ["size  1.50 GiB", "      24 bytes | x", "name  abcdef..uvwxyz"]


def test_commands_can_be_pasted_one_a_line_and_go_on_behind_a_backslash() -> None:
    values = ("memprof advise g.memprof", "memprof show 'the second run.memprof' -o report.html")
    facts = Facts(facts=(Fact(label="next", values=values, are_commands=True),))
    assert _texts(facts, width=40) == [
        "next  memprof advise g.memprof",
        "      memprof show \\",
        "        'the second run.memprof' -o \\",
        "        report.html",
    ]


def test_a_note_says_its_tone_without_colour() -> None:
    assert _texts(Note(tone=Tone.WARNING, text="mind 2.00 GiB here"), width=12) == ["! mind", "  2.00 GiB", "  here"]


def test_a_gauge_shows_the_parts_beside_their_share_of_the_capacity() -> None:
    gauge = Gauge(parts=_parts(params=2, activations=4), capacity_bytes=12, verdict="fits", tone=Tone.GOOD)
    assert _texts(gauge, width=40) == ["P" * 8 + "A" * 16 + "  ####.... 50.0%", "* fits"]
    no_capacity = replace(gauge, capacity_bytes=None)
    assert _texts(no_capacity, width=12) == ["P" * 4 + "A" * 8, "* fits"]


def test_a_small_step_on_a_large_card_is_still_seen() -> None:
    gauge = Gauge(parts=_parts(params=1, activations=1), capacity_bytes=2**40, verdict="fits", tone=Tone.GOOD)
    assert _texts(gauge, width=40)[0] == "P" * 12 + "A" * 12 + "  #....... <0.1%"


def test_a_gauge_marks_the_capacity_that_it_runs_past() -> None:
    gauge = Gauge(parts=_parts(params=40), capacity_bytes=10, verdict="too much", tone=Tone.BAD)
    assert _texts(gauge, width=40) == ["P" * 24 + "  ##|##### 400.0%".replace("##|#####", "#|#####"), "! too much"]


def test_a_gauge_has_the_sizes_of_its_largest_parts_and_always_of_what_is_unattributed() -> None:
    sizes = {"params": 9, "activations": 8, "gradients": 7, "outputs": 6, "batch": 5, "constants": 4, "unattributed": 1}
    gauge = Gauge(parts=_parts(**sizes), capacity_bytes=None, verdict="fits", tone=Tone.GOOD, with_sizes=True)
    assert _texts(gauge, width=70)[2:] == [
        "P params            9 B  22.5%  A activations       8 B  20.0%",
        "G gradients         7 B  17.5%  X outputs           6 B  15.0%",
        "? unattributed      1 B   2.5%    (2 more)          9 B  22.5%",
    ]


def test_a_table_has_titles_a_tree_bars_and_a_total() -> None:
    table = Table(
        columns=(Column(title="name"), Column(title="size", align=Align.RIGHT), Column(title="", min_width=4)),
        rows=(
            Row(
                cells=(Cell(text="one"), Cell(text="8 B"), Bar(value=8)),
                children=(
                    Row(cells=(Cell(text="a", key=Category.PARAMS), Cell(text="6 B"), Bar(value=6))),
                    Row(cells=(Cell(text="b"), Cell(text="2 B"), Bar(value=2))),
                ),
            ),
            Row(cells=(Cell(text="two"), Cell(text="0 B"), Bar(value=0))),
        ),
        total=Row(cells=(Cell(text="total"), Cell(text="8 B"), Cell(text=""))),
    )
    assert _texts(table, width=20) == [
        "name    size",
        "one      8 B  ######",
        "|- P a   6 B  ####",
        "`- b     2 B  ##",
        "two      0 B",
        "--------------------",
        "total    8 B",
    ]
    assert _texts(table, width=19, unicode=True)[1:4] == [
        "one      8 B  █████",
        "├─ P a   6 B  ███▊",
        "└─ b     2 B  █▎",
    ]


def test_a_table_says_what_it_leaves_out_and_puts_long_texts_below() -> None:
    table = Table(
        columns=(
            Column(title="name", shorten=Shorten.MIDDLE, min_width=4),
            Column(title="extra", priority=1),
            Column(title="nothing"),
            Column(title="op", shorten=Shorten.MIDDLE, min_width=4, below=True),
        ),
        rows=(
            Row(cells=(Cell(text="abcdefgh"), Cell(text="123456789"), Cell(text=""), Cell(text="a/b/c/d/e/f"))),
            Row(cells=(Cell(text="x"), Cell(text="1"), Cell(text=""), Cell(text=""))),
        ),
        total=Row(cells=(Cell(text="total"), Cell(text=""), Cell(text=""), Cell(text=""))),
    )
    assert _texts(table, width=12) == [
        "name",
        "abcdefgh",
        "  a/b/../e/f",
        "x",
        "--------",
        "total",
        "not shown at",
        "this width:",
        "extra",
    ]


def test_a_chart_stacks_marks_its_peak_and_rules_its_bands() -> None:
    # 16 rows of 1 B. Six columns of room, three moments: each is drawn two columns wide.
    chart = StackedChart(
        moments=(
            Moment(parts=_parts(params=4), band="up"),
            Moment(parts=_parts(params=4, activations=12), band="up"),
            Moment(parts=_parts(params=4, activations=3), band="down"),
        ),
        mark="peak",
    )
    assert _texts(chart, width=12) == [
        "   peak v",
        "16 B +  AA",
        "     |  AA",
        "     |  AA",
        "     |  AA",
        "12 B +  AA",
        "     |  AA",
        "     |  AA",
        "     |  AA",
        " 8 B +  AA",
        "     |  AAAA",
        "     |  AAAA",
        "     |  AAAA",
        " 4 B +PPPPPP",
        "     |PPPPPP",
        "     |PPPPPP",
        "     |PPPPPP",
        " 0 B +------",
        "  up  ====",
        "down      ==",
        "      P params",
        "      A activations",
    ]


def test_a_narrow_chart_keeps_the_highest_moment() -> None:
    moments = [Moment(parts=_parts(params=1), band="") for _ in range(100)]
    moments[37] = Moment(parts=_parts(params=1, gradients=15), band="")
    lines = _texts(StackedChart(moments=tuple(moments), mark="peak"), width=17)
    assert lines[1].count("G") == 1


def test_the_top_cell_of_a_stack_shows_how_full_it_is() -> None:
    # 6.5 of 16 rows: six full cells and one half full.
    chart = StackedChart(
        moments=(Moment(parts=_parts(params=32), band=""), Moment(parts=_parts(params=13), band="")), mark="peak"
    )
    lines = _texts(chart, width=8, unicode=True)
    assert [line[7:] for line in lines[9:12]] == ["", "▄", "P"]


def test_a_sliver_on_top_does_not_colour_the_whole_cell() -> None:
    moments = (
        Moment(parts=_parts(params=3200), band=""),
        Moment(parts=_parts(params=1290, unattributed=10), band=""),
    )
    document = Document(blocks=(StackedChart(moments=moments, mark="peak"),))
    lines = page_lines(document, Paper(width=12, unicode=True))
    assert Category.UNATTRIBUTED not in {span.key for line in lines for span in line}


def _bars(*sizes: int, capacity_bytes: int | None) -> StackedBars:
    bars = tuple(
        StackedBar(label=f"row{number}", parts=_parts(params=2, activations=size - 2) if size else (), size=f"{size} B")
        for number, size in enumerate(sizes)
    )
    return StackedBars(bars=bars, capacity_bytes=capacity_bytes)


def test_bars_stand_on_one_scale() -> None:
    # 30 columns less 4 for the label, 4 for the size and two gaps of 2: 18 cells for 18 B
    assert _texts(_bars(18, 9, 0, capacity_bytes=1000), width=30) == [
        "row0  PPAAAAAAAAAAAAAAAA  18 B",
        "row1  PPAAAAAAA            9 B",
        "row2                       0 B",
        "P params  A activations",
    ]


def test_bars_show_where_the_capacity_ends() -> None:
    assert _texts(_bars(18, 9, capacity_bytes=12), width=30) == [
        "row0  PPAAAAAAAAAAAAAAAA  18 B",
        "row1  PPAAAAAAA   |        9 B",
        "    capacity 12 B ^",
        "P params  A activations",
    ]
    # Not much larger than the longest bar: the scale goes up to it.
    assert _texts(_bars(9, capacity_bytes=10), width=29)[:2] == [
        "row0  PPPPAAAAAAAAAAAA |  9 B",
        "         capacity 10 B ^",
    ]


def test_a_bar_of_something_is_never_empty() -> None:
    assert _texts(_bars(1800, 3, capacity_bytes=None), width=32)[1] == "row1  P                      3 B"


def test_a_table_without_total_ends_with_its_rows() -> None:
    table = Table(columns=(Column(title="name"),), rows=(Row(cells=(Cell(text="one"),)),))
    assert _texts(table, width=20) == ["name", "one"]


def test_a_verdict_has_its_sign_beside_it() -> None:
    yes, no = (Cell(text=text, key=tone, is_verdict=True) for text, tone in (("yes", Tone.GOOD), ("no", Tone.BAD)))
    columns = (Column(title="left", shorten=Shorten.END), Column(title="rightmost", align=Align.RIGHT))
    table = Table(columns=columns, rows=(Row(cells=(yes, no)),))
    assert _texts(table, width=20, unicode=True) == ["left   rightmost", "✓ yes       ✗ no"]


def test_a_table_that_is_continued_shows_every_column() -> None:
    columns = (Column(title="key"), *(Column(title=name, align=Align.RIGHT) for name in ("one", "two", "three")))
    row = Row(cells=(Cell(text="a"), *(Cell(text=f"{number} MiB") for number in (1, 2, 3))))
    assert _texts(Table(columns=columns, rows=(row,), total=row, continued=True), width=20) == [
        "key    one    two",
        "a    1 MiB  2 MiB",
        "-----------------",
        "a    1 MiB  2 MiB",
        "",
        "key  three",
        "a    3 MiB",
        "----------",
        "a    3 MiB",
    ]


def test_a_sliver_in_the_middle_of_a_part_cell_does_not_colour_it() -> None:
    """Params and outputs are of one size, with a byte of the batch between them, in the middle of what is drawn."""
    parts = [(Category.PARAMS, 100), (Category.BATCH, 1), (Category.OUTPUTS, 100)]
    low = Moment(parts=tuple(Part(category=category, size_bytes=size) for category, size in parts), band="")
    high = Moment(parts=(Part(category=Category.PARAMS, size_bytes=3200),), band="")
    chart = StackedChart(moments=(high, low), mark="peak", is_small=True)
    keys = [span.key for line in page_lines(Document(blocks=(chart,)), Paper(width=40, unicode=True)) for span in line]
    assert Category.PARAMS in keys
    assert Category.BATCH not in keys
