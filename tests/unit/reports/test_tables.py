"""Which columns of a table fit, and titles of columns that break."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memprof.reports.document import Column
from memprof.reports.layout.columns import Fit, Need, break_lines, continue_columns, fit_columns
from memprof.reports.layout.lines import Paper
from memprof.reports.layout.table import break_title, narrowest_title


def _need(index: int, natural: int, minimum: int | None = None, *, priority: int = 0, below: bool = False) -> Need:
    column = Column(title="t", priority=priority, below=below)
    return Need(index=index, column=column, natural=natural, minimum=natural if minimum is None else minimum)


def test_everything_stands_side_by_side_where_there_is_room() -> None:
    needs = [_need(0, 10), _need(1, 8, priority=1), _need(2, 30, 5, below=True)]
    assert fit_columns(needs, 52) == Fit(widths={0: 10, 1: 8, 2: 30}, below=(), dropped=(), gap=2)


def test_long_columns_go_below_first() -> None:
    needs = [_need(0, 10), _need(1, 8, priority=1), _need(2, 30, 5, below=True)]
    assert fit_columns(needs, 51) == Fit(widths={0: 10, 1: 8}, below=(2,), dropped=(), gap=2)


def test_texts_are_shortened_before_a_column_is_dropped() -> None:
    assert fit_columns([_need(0, 20, 6), _need(1, 8, priority=1)], 18).widths == {0: 8, 1: 8}


def test_the_gap_closes_up_before_a_column_is_dropped() -> None:
    assert fit_columns([_need(0, 6), _need(1, 8, priority=1)], 15) == Fit(
        widths={0: 6, 1: 8}, below=(), dropped=(), gap=1
    )


def test_the_highest_priority_number_is_dropped_first() -> None:
    needs = [_need(0, 6), _need(1, 8, priority=2), _need(2, 8, priority=1)]
    assert fit_columns(needs, 16) == Fit(widths={0: 6, 2: 8}, below=(), dropped=(1,), gap=1)


def test_a_narrow_column_is_put_back_where_a_wide_one_had_no_room() -> None:
    needs = [_need(0, 6), _need(1, 4, priority=2), _need(2, 12, priority=1)]
    assert fit_columns(needs, 11) == Fit(widths={0: 6, 1: 4}, below=(), dropped=(2,), gap=1)
    assert fit_columns(needs, 19) == Fit(widths={0: 6, 2: 12}, below=(), dropped=(1,), gap=1)


def test_what_may_not_be_dropped_sticks_out() -> None:
    assert fit_columns([_need(0, 30), _need(1, 30)], 20).widths == {0: 30, 1: 30}


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.booleans()), min_size=1, max_size=9
    ),
    st.integers(min_value=1, max_value=200),
)
def test_columns_that_may_all_be_dropped_fit_or_are_down_to_one(
    sizes: list[tuple[int, int, int, bool]], width: int
) -> None:
    needs = [
        _need(index, max(one, other), min(one, other), priority=priority, below=below and index > 0)
        for index, (one, other, priority, below) in enumerate(sizes)
    ]
    needs[0] = _need(0, 1)

    fit = fit_columns(needs, width)

    assert sum(fit.widths.values()) + fit.gap * (len(fit.widths) - 1) <= width
    assert sorted([*fit.widths, *fit.below, *fit.dropped]) == list(range(len(needs)))
    for index, given_width in fit.widths.items():
        assert needs[index].minimum <= given_width <= needs[index].natural


def test_lines_break_where_the_minimum_widths_do_not_fit() -> None:
    needs = [_need(0, 10, 4), _need(1, 20, 8), _need(2, 30, 20)]
    assert break_lines(needs, 22, gap=3) == [{0: 8, 1: 11}, {2: 22}]


def test_a_table_is_continued_with_its_first_column_again() -> None:
    needs = [_need(0, 12, 6), *(_need(index, 8) for index in range(1, 5))]
    # A third of 30 for the first column, then two columns of 8 and their gaps: 10 + 2 * (2 + 8)
    assert continue_columns(needs, 30) == [
        Fit(widths={0: 10, 1: 8, 2: 8}, below=(), dropped=(), gap=2),
        Fit(widths={0: 10, 3: 8, 4: 8}, below=(), dropped=(), gap=2),
    ]
    assert continue_columns([_need(0, 12)], 40) == [Fit(widths={0: 12}, below=(), dropped=(), gap=2)]


_PAPER = Paper(width=80, unicode=True)


def test_a_title_breaks_after_a_plus_a_hyphen_or_a_blank() -> None:
    assert break_title("bf16+remat-mlp+scan", 9, _PAPER) == ["bf16+", "remat-", "mlp+scan"]
    assert break_title("own parameters", 12, _PAPER) == ["own", "parameters"]
    assert break_title("own parameters", 24, _PAPER) == ["own parameters"]
    assert break_title("", 4, _PAPER) == [""]


def test_a_long_word_is_shortened() -> None:
    assert narrowest_title("a+" + "x" * 40, _PAPER) == 16
    assert break_title("y" * 40, 9, _PAPER) == ["yyyy…yyyy"]


def test_the_narrowest_width_is_that_of_the_longest_word() -> None:
    assert narrowest_title("bf16+donate+scan", _PAPER) == len("donate+")
    assert narrowest_title("", _PAPER) == 0
