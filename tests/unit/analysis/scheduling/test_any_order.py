"""Bounds and orders of a few operations, by hand. The laws that hold for all are in `tests/property`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.analysis.scheduling.any_order import (
    Operations,
    held_in_any_order,
    lower_bound_bytes,
    other_orders,
    peak_bytes,
)

# Two branches, 0 → 2 and 1 → 3, and 4 that joins them.
BRANCHES = Operations(
    needs=[[], [], [0], [1], [2, 3]], touches=[[0], [1], [0, 2], [1, 3], [2, 3]], sizes=[100, 100, 10, 10]
)


@pytest.mark.parametrize(
    ("touches", "sizes", "expected"),
    [
        ([], [], 0),
        ([[], []], [], 0),
        ([[0]], [7], 7),
        ([[0], [0, 1], [1]], [10, 5], 15),
        ([[0], [1]], [10, 5], 10),  # the first ends before the second begins
        ([[0], [1], [0]], [10, 5], 15),  # held in between
    ],
)
def test_the_peak_of_an_order(touches: list[list[int]], sizes: list[int], expected: int) -> None:
    made = Operations(needs=[[] for _ in touches], touches=touches, sizes=sizes)
    assert peak_bytes(made) == expected


def test_another_order_has_another_peak() -> None:
    assert peak_bytes(BRANCHES) == 210  # both large pieces, and the first small one
    assert peak_bytes(BRANCHES, [0, 2, 1, 3, 4]) == 120  # a large piece and both small ones
    assert peak_bytes(BRANCHES, iter([0, 2, 1, 3, 4])) == 120
    assert lower_bound_bytes(BRANCHES) == 100  # a small piece may take the memory of the large one


def test_depth_first_ends_a_branch_before_it_begins_the_next() -> None:
    *_, depth_first = other_orders(BRANCHES)
    assert depth_first == [1, 3, 0, 2, 4]


def test_what_is_held_before_and_after_an_operation_in_any_order() -> None:
    held = held_in_any_order(BRANCHES, range(4))
    # Bit k is piece k: 0 holds nothing before it and piece 0 after it; 2 has piece 0 before it and piece 2 after it.
    assert held == [(0b0000, 0b0001), (0b0000, 0b0010), (0b0001, 0b0100), (0b0010, 0b1000), (0b1100, 0b0000)]


@pytest.mark.parametrize(
    ("large", "small", "expected"),
    [(1000, 0, 1000), (1000, 1, 1000), (1000, 2, 1002), (3000, 1, 3000), (3000, 2, 3000), (3000, 4, 3004)],
)
def test_pieces_of_a_thousandth_of_the_largest_are_left_out(large: int, small: int, expected: int) -> None:
    made = Operations(needs=[[], [0]], touches=[[0, 1], [0, 1]], sizes=[large, small])
    assert lower_bound_bytes(made) == expected


def test_an_operation_that_frees_more_than_it_takes_runs_as_soon_as_it_can() -> None:
    """Three pieces are made, and only then used: each use frees 100 bytes and takes 10."""
    made = Operations(
        needs=[[], [], [], [0], [1], [2]],
        touches=[[0], [1], [2], [0, 3], [1, 4], [2, 5]],
        sizes=[100, 100, 100, 10, 10, 10],
    )
    forward, _, depth_first = other_orders(made)
    # 0 runs first; 1 and 2 are then moved forward together with their uses, before that of 0.
    assert forward == [0, 1, 4, 2, 5, 3]
    assert depth_first == [2, 5, 1, 4, 0, 3]
    assert [peak_bytes(made, order) for order in (None, forward, depth_first)] == [310, 210, 110]


@pytest.mark.parametrize(
    ("made_bytes", "expected"),
    [
        (100, [0, 2, 1, 3, 4]),  # 2 frees as much as it takes: it runs as soon as 0 has
        (101, [0, 1, 2, 3, 4]),  # one byte more: it waits for its turn
    ],
)
def test_an_operation_moves_forward_if_it_takes_no_byte_more_than_it_frees(
    made_bytes: int, expected: list[int]
) -> None:
    forward, *_ = other_orders(replace(BRANCHES, sizes=[100, 100, made_bytes, made_bytes]))
    assert forward == expected
