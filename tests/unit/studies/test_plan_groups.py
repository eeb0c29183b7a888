"""The size of groups of iterations, added up by hand, and the cost of a choice in groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.analysis.records.checkpoints import Block, Checkpoints, Operation, Signature
from memprof.studies.plan.choice import choice_of, notable_repeats
from memprof.studies.plan.groups import in_groups

_UP, _NOISE = Signature("dot_general", (), "None"), Signature("random_bits", (), "None")
_OPERATIONS = (
    Operation(signature=_UP, inputs=(), size_bytes=300, seconds=2.0, is_needed=True),
    Operation(signature=_NOISE, inputs=(), size_bytes=0, seconds=1.0, is_needed=True),
)


def _scan(count: int, carried_bytes: int = 100) -> Block:
    return Block(operations=_OPERATIONS, count=count, carried_bytes=carried_bytes)


@pytest.mark.parametrize(
    ("count", "carried_bytes", "kept", "size"),
    [
        (400, 100, set(), 20),  # 20 carries and 20 iterations of 100 bytes: the root of 400
        (400, 100, {_UP}, 10),  # an iteration has 400 bytes, so the root of 400 / 4; 40 * 100 + 10 * 400
        (512, 100, set(), 16),  # the root is 22: 16 and 32 divide 512, and 16 is 1.4 times smaller
        (127, 100, set(), 11),  # a prime number
        (15, 100, set(), 3),
        (4, 100, set(), 2),
        (3, 100, set(), None),
        (15, 100, {_UP}, None),  # the root of 15 / 4
        (400, 0, set(), None),  # nothing is carried, so groups save nothing
    ],
)
def test_the_carries_of_groups_and_of_one_group_s_iterations_are_fewest(
    count: int, carried_bytes: int, kept: set[Signature], size: int | None
) -> None:
    blocks = [_scan(count, carried_bytes)]
    found = in_groups(blocks, choice_of(blocks, kept))
    assert (None if found is None else found.group_size) == size


def test_the_groups_of_a_scan_within_a_scan_are_its_runs() -> None:
    """20 runs of 12 iterations: 12 keep 300 bytes each, and all 240 are computed once more, 3 seconds each."""
    blocks = [replace(_scan(240), inner_count=12)]
    found = in_groups(blocks, choice_of(blocks, {_UP}))
    assert found is not None
    assert (found.group_size, found.size_bytes, found.repeated_seconds) == (12, 12 * 300, 240 * 1.0 + 240 * 3.0)


def test_only_one_group_keeps_results_at_a_time_and_all_are_computed_once_more() -> None:
    """Groups of 10: 10 iterations keep 300 bytes each, and 4 of a scan too short for groups.

    The noise of all 404 is computed again, 1 second each, and once more that of the 400 in groups with the products.
    """
    blocks = [_scan(400), _scan(4, carried_bytes=50)]
    found = in_groups(blocks, choice_of(blocks, {_UP}))
    assert found is not None
    assert (found.group_size, found.size_bytes) == (10, (10 + 4) * 300)
    assert found.repeated_seconds == 404 * 1.0 + 400 * 3.0
    assert found.checkpoints == Checkpoints(kept=frozenset({_UP}), group_size=10)
    assert notable_repeats(blocks, found.checkpoints) == {"random_bits": 404 + 400}
    assert notable_repeats(blocks, replace(found.checkpoints, group_size=None)) == {"random_bits": 404}
