"""What is said of all orders of a program's operations, against all of them, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.analysis.scheduling.any_order import (
    Operations,
    held_in_any_order,
    lower_bound_bytes,
    other_orders,
    peak_bytes,
)

pytestmark = pytest.mark.with_one_jax


@st.composite
def operations(draw: st.DrawFn) -> Operations:
    """Up to five operations that work on up to five pieces of memory."""
    length = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    pieces = st.sets(st.integers(0, len(sizes) - 1), max_size=3).map(sorted)
    needs = [sorted(draw(st.sets(st.integers(0, number - 1)))) if number else [] for number in range(length)]
    return Operations(needs=needs, touches=[draw(pieces) for _ in range(length)], sizes=sizes)


def _all_orders(made: Operations, begin: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(begin) == len(made.needs):
        yield begin
    for number, needed in enumerate(made.needs):
        if number not in begin and set(needed) <= set(begin):
            yield from _all_orders(made, (*begin, number))


def _live(made: Operations, order: tuple[int, ...]) -> dict[int, tuple[set[int], set[int]]]:
    """The pieces that are live before and after each operation, if they run in this order."""
    touched = [set(made.touches[number]) for number in order]
    live = {}
    for place, number in enumerate(order):
        past, to_come = set().union(*touched[:place]), set().union(*touched[place + 1 :])
        own = touched[place]
        live[number] = (past & (own | to_come), (past | own) & to_come)
    return live


@given(operations())
def test_what_is_held_in_any_order_is_held_in_each_and_nothing_else_is(made: Operations) -> None:
    all_live = [_live(made, order) for order in _all_orders(made)]
    pieces = range(len(made.sizes))
    for number, held in enumerate(held_in_any_order(made, pieces)):
        for moment in (0, 1):
            always = set.intersection(*(live[number][moment] for live in all_live))
            assert {piece for piece in pieces if held[moment] >> piece & 1} == always


@given(operations())
def test_no_order_holds_less_than_the_bound(made: Operations) -> None:
    """Not even where all that an operation makes takes the memory of what it reads."""
    least = min(
        max(sum(made.sizes[piece] for piece in live) for pair in _live(made, order).values() for live in pair)
        for order in _all_orders(made)
    )
    assert lower_bound_bytes(made) <= least <= min(peak_bytes(made, order) for order in _all_orders(made))


@given(operations())
def test_other_orders_are_orders_of_the_same_operations(made: Operations) -> None:
    possible = set(_all_orders(made))
    for order in other_orders(made):
        assert tuple(order) in possible


def test_deferred_products_are_moved_forward_and_early_copies_back() -> None:
    """Three copies (pieces 0 to 2), a chain that uses one each (3 to 5), and last what is made of it (6 to 8)."""
    needs = [[], [], [], [0], [1, 3], [2, 4], [3], [4], [5]]
    touches = [[0], [1], [2], [0, 3], [1, 3, 4], [2, 4, 5], [3, 6], [4, 7], [5, 8]]
    made = Operations(needs=needs, touches=touches, sizes=[100] * 6 + [1] * 3)
    assert peak_bytes(made) == 400  # the third copy and the chain, or all copies and the first of the chain
    assert min(peak_bytes(made, order) for order in other_orders(made)) == 300  # one copy, and two of the chain
    assert lower_bound_bytes(made) == 200


def test_depth_first_each_branch_is_used_up_before_the_next() -> None:
    """Two branches of a small value (0): what is large in each (1, 2) is made small (3, 4), and then both are added."""
    needs = [[], [0], [0], [1], [2], [3, 4]]
    touches = [[0], [0, 1], [0, 2], [1, 3], [2, 4], [3, 4, 5]]
    made = Operations(needs=needs, touches=touches, sizes=[1, 100, 100, 2, 2, 1])
    *_, depth_first = other_orders(made)
    assert depth_first == [0, 2, 4, 1, 3, 5]
    assert (peak_bytes(made), peak_bytes(made, depth_first)) == (202, 104)
