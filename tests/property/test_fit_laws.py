"""The laws of the search for the largest value that fits, on made-up footprints."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memprof.studies.fit.search import find_largest

laws = settings(max_examples=300, derandomize=True)
Footprint = Callable[[int], int]

_LINES = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 10**7)),
    min_size=1,
    max_size=4,
)


@st.composite
def monotone(draw: st.DrawFn) -> Footprint:
    """The highest of a few lines, rounded up as an allocator does: what steps without XLA's own remat look like."""
    lines, rounding = draw(_LINES), draw(st.sampled_from([1, 256, 2**20]))
    return lambda value: max(-(-(fixed + slope * value) // rounding) * rounding for fixed, slope in lines)


@st.composite
def stepped(draw: st.DrawFn) -> Footprint:
    """Padded to a multiple of a tile: flat for a while, then a leap."""
    fixed, leap, tile = draw(st.integers(0, 10**9)), draw(st.integers(1, 10**8)), draw(st.integers(1, 64))
    return lambda value: fixed + leap * -(-value // tile)


@st.composite
def bent(draw: st.DrawFn) -> Footprint:
    """A line until XLA saves memory by itself: there it falls back, and grows again more slowly. Not monotone."""
    fixed, slope = draw(st.integers(0, 10**8)), draw(st.integers(10**3, 10**7))
    limit, fraction = draw(st.integers(10**8, 10**10)), draw(st.floats(0.2, 0.95))

    def footprint(value: int) -> int:
        straight = fixed + slope * value
        return straight if straight <= limit else int(fraction * limit + fraction * (straight - limit) / 2)

    return footprint


def _search(footprint: Footprint, start: int, step: int, budget_bytes: int) -> tuple[int, list[int]]:
    tried: list[int] = []

    def measure(value: int) -> int:
        assert value % step == 0
        assert value not in tried, "measured twice"
        tried.append(value)
        return footprint(value)

    return find_largest(measure, start=start * step, step=step, budget_bytes=budget_bytes), tried


_BUDGETS = st.integers(10**6, 10**10)


@laws
@given(st.one_of(monotone(), stepped(), bent()), st.integers(1, 300), st.integers(1, 12), _BUDGETS)
def test_the_answer_fits_and_the_next_one_does_not(
    footprint: Footprint, start: int, step: int, budget_bytes: int
) -> None:
    assume(footprint(step) <= budget_bytes < footprint(2 * 10**9))
    assume(footprint(start * step) != footprint(2 * start * step) != footprint(32 * start * step))
    answer, tried = _search(footprint, start, step, budget_bytes)
    assert footprint(answer) <= budget_bytes < footprint(answer + step)
    assert {answer, answer + step} <= set(tried)


@laws
@given(monotone(), st.integers(1, 300), st.integers(1, 12), _BUDGETS)
def test_of_a_monotone_footprint_nothing_larger_fits(
    footprint: Footprint, start: int, step: int, budget_bytes: int
) -> None:
    assume(footprint(step) <= budget_bytes < footprint(2 * 10**9))
    assume(footprint(start * step) != footprint(2 * start * step))
    answer, tried = _search(footprint, start, step, budget_bytes)
    assert all(footprint(answer + more * step) > budget_bytes for more in (1, 2, 3, 10, 1000))
    assert all((value <= answer) == (footprint(value) <= budget_bytes) for value in tried)


@laws
@given(st.integers(0, 10**8), st.integers(10**4, 10**6), st.integers(1, 100), _BUDGETS)
def test_a_straight_line_takes_few_compiles(fixed: int, slope: int, start: int, budget_bytes: int) -> None:
    assume(fixed + slope <= budget_bytes)
    # Within a leap of the start; from further away each leap takes one more.
    assume((budget_bytes - fixed) // slope < 16 * start)
    answer, tried = _search(lambda value: fixed + slope * value, start, 1, budget_bytes)
    assert answer == (budget_bytes - fixed) // slope
    assert len(tried) <= 4
