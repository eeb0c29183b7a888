"""Keys and values that attention reads, by hand: leaves are hidden units, weights, keys, values and a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memprof.sources.jax.roles.caches import NOTHING_HELD, Caches, Held

HIDDEN, WEIGHTS, KEYS, VALUES, TABLE = (Held(holds=1 << n, made_of=1 << n) for n in range(5))
HEADS = (2, 12, 2, 8)


def equation(name: str, *shapes: tuple[int, ...], along: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        primitive=SimpleNamespace(name=name),
        invars=[SimpleNamespace(aval=SimpleNamespace(shape=shape)) for shape in shapes],
        outvars=[SimpleNamespace(aval=SimpleNamespace(shape=shapes[0]))] if shapes else [],
        params={"dimension_numbers": (((), ()), (along, along)), "shape": shapes[0] if shapes else (), "dimension": 0},
    )


def started() -> tuple[Caches, Held]:
    """A walk that has made queries with weights."""
    caches = Caches()
    caches.start(5)
    return caches, caches.of_result(QUERY, [HIDDEN, WEIGHTS])


QUERY = equation("dot_general")
KERNEL = equation("dot_product_attention_fwd", HEADS, HEADS, HEADS, (2, 12))
SCORES, SUM = (equation("dot_general", along=(0,)) for _ in range(2))


def test_a_kernel_reads_what_has_the_head_size_of_its_queries() -> None:
    caches, query = started()
    caches.of_result(KERNEL, [query, KEYS, VALUES, TABLE])
    assert caches.only_read(WEIGHTS.holds) == KEYS.holds | VALUES.holds
    assert caches.only_read(TABLE.holds) == 0  # then no weights have made the queries


@pytest.mark.parametrize(
    ("keys", "values", "found"),
    [
        (KEYS, VALUES, KEYS.holds | VALUES.holds),
        (KEYS, KEYS, KEYS.holds),  # a latent is both
        (HIDDEN, VALUES, 0),  # data that ask themselves
        (KEYS, HIDDEN, 0),
        (NOTHING_HELD, VALUES, 0),  # the step makes the keys
    ],
)
def test_a_leaf_is_read_as_keys_and_values_by_queries_that_are_not_made_of_it(
    keys: Held, values: Held, found: int
) -> None:
    caches, query = started()
    scores = caches.of_result(SCORES, [query, keys])
    weights = caches.of_result(equation("exp"), [scores])
    caches.of_result(SUM, [weights, values])
    assert caches.only_read(WEIGHTS.holds) == found
    assert caches.leaves() == 0  # nothing is written


def test_what_attention_has_read_does_not_make_the_next_queries() -> None:
    """One array with the keys and values of all layers is read by each of them."""
    caches, query = started()
    scores = caches.of_result(SCORES, [query, KEYS])
    weights = caches.of_result(equation("exp"), [scores])
    attended = caches.of_result(SUM, [weights, KEYS])
    total = caches.of_result(equation("reduce_sum"), [weights])
    hidden = caches.of_result(equation("div"), [attended, total])
    assert hidden.made_of == 0
    assert caches.of_result(equation("add", HEADS, HEADS), [hidden, HIDDEN]).made_of == HIDDEN.holds


def test_a_mask_of_positions_is_a_comparison_with_counted_ones() -> None:
    caches = Caches()
    caches.start(5)
    places = caches.of_result(equation("iota", (12,)), [])
    hot = caches.of_result(equation("eq", HEADS, HEADS), [places, TABLE])
    rest = caches.of_result(equation("sub", HEADS, HEADS), [NOTHING_HELD, hot])
    assert (hot.is_mask, rest.is_mask) == (True, True)
    angles = caches.of_result(equation("sin"), [caches.of_result(equation("mul"), [places, TABLE])])
    assert not angles.is_mask  # of rotary positions
    masked = caches.of_result(equation("mul"), [KEYS, rest])
    rotated = caches.of_result(equation("mul"), [KEYS, angles])
    assert (masked.is_masked, rotated.is_masked) == (True, False)
