"""The laws of the search over techniques, on made-up families and footprints."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.studies.fit.cheapest import CheapestSearch, Choice, Combination, Cost, Family, combine

laws = settings(max_examples=200, derandomize=True)


@dataclass(frozen=True)
class Table:
    """Combinations and what each takes."""

    sizes: dict[Combination, int]

    def cheapest(self, budget_bytes: int) -> Cost | None:
        """By measuring all of them."""
        return min((each.cost for each, size in self.sizes.items() if size <= budget_bytes), default=None)

    def search(self, budget_bytes: int) -> tuple[CheapestSearch, int]:
        search, count = CheapestSearch(list(self.sizes), budget_bytes=budget_bytes), 0
        while (combination := search.next()) is not None:
            search.record(combination, self.sizes[combination])
            count += 1
        return search, count


@st.composite
def families(draw: st.DrawFn) -> tuple[Family, ...]:
    drawn = []
    for number in range(draw(st.integers(1, 4))):
        is_ordered = draw(st.booleans())
        choices = [Choice(label="", level=0 if is_ordered else None)]
        for choice in range(draw(st.integers(1, 3))):
            cost = Cost(
                changes_training=draw(st.booleans()) and number == 0,
                moves_to_host=draw(st.booleans()) and number == 1,
                recomputed_flops=draw(st.integers(0, 50)),
                effort=draw(st.integers(0, 3)),
            )
            choices.append(Choice(label=f"t{number}{choice}", level=draw(st.integers(1, 2)), cost=cost))
        drawn.append(Family(name=str(number), choices=tuple(choices)))
    return tuple(drawn)


@st.composite
def ordered_tables(draw: st.DrawFn) -> Table:
    """Footprints as expected: a choice of a higher level takes less, whatever it stands beside."""
    combinations = combine(draw(families()))
    noise = draw(st.integers(0, 2**32))
    sizes: dict[Combination, int] = {}
    for combination in combinations:
        sizes[combination] = 1 + crc32(f"{combination.label} {noise}".encode()) % 1000
    # The largest of what it and all that should hold less than it take: an order that no noise breaks.
    return Table(
        {
            each: max(size, *(others for other, others in sizes.items() if other.holds_less_than(each)), 0)
            for each, size in sizes.items()
        }
    )


@st.composite
def any_tables(draw: st.DrawFn) -> Table:
    combinations = combine(draw(families()))
    sizes = draw(st.lists(st.integers(1, 1000), min_size=len(combinations), max_size=len(combinations)))
    return Table(dict(zip(combinations, sizes, strict=True)))


@laws
@given(ordered_tables(), st.integers(1, 1000))
def test_where_memory_is_as_expected_nothing_that_fits_is_cheaper(table: Table, budget_bytes: int) -> None:
    search, count = table.search(budget_bytes)
    assert (search.best.cost if search.best else None) == table.cheapest(budget_bytes)
    assert count <= len(table.sizes)
    assert not search.contradictions()


@laws
@given(any_tables(), st.integers(1, 1000))
def test_whatever_the_memory_the_answer_fits_and_what_was_passed_over_is_named(table: Table, budget_bytes: int) -> None:
    search, _ = table.search(budget_bytes)
    if search.best is not None:
        assert table.sizes[search.best] <= budget_bytes
    cheaper = {
        each
        for each, size in table.sizes.items()
        if size <= budget_bytes and (search.best is None or each.cost < search.best.cost)
    }
    assert cheaper <= set(search.inferred())
