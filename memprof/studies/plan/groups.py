"""Choices for blocks in groups, where another checkpoint around each group saves only the inputs of its first block.

A scan of L iterations saves the carry of each one, and L layers in sequence save the input of each one. In groups of g,
they save L / g of these, and while the backward pass goes through a group, the inputs and kept results of g blocks.
Each group is computed once more for that. (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section
4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

from memprof.analysis.records.checkpoints import Block, Signature
from memprof.studies.plan.choice import Choice, choice_of

_NEAR = 2  # how much larger or smaller a divisor of the number of iterations may be than the best size


def in_groups(blocks: Sequence[Block], choice: Choice) -> Choice | None:
    """Return a choice with its blocks in groups of the size that takes the least memory; None if groups save nothing.

    Args:
        choice: the results that each block keeps; nothing is offloaded.
    """
    size = _best_size(max(blocks, key=lambda each: each.count * each.carried_bytes), choice.kept)
    if size is None:
        return None
    grouped = [each for each in blocks if each.num_at_once(size) < each.count]
    at_once = [replace(each, count=each.num_at_once(size)) for each in blocks]
    return replace(
        choice,
        size_bytes=choice_of(at_once, choice.kept).size_bytes,
        repeated_seconds=choice.repeated_seconds + choice_of(grouped, ()).repeated_seconds,
        group_size=size,
    )


def _best_size(block: Block, kept: frozenset[Signature]) -> int | None:
    """Return the g for which L / g inputs, and the inputs and results of g blocks, are smallest; None below 2.

    A divisor of L is preferred, because iterations that are left over take a copy of the arrays that the scan reads. A
    scan within another scan has groups already.
    """
    if block.inner_count is not None:
        return block.inner_count
    kept_bytes = choice_of([replace(block, count=1)], kept).size_bytes
    size = isqrt(block.count * block.carried_bytes // max(block.carried_bytes + kept_bytes, 1))
    if size < 2:
        return None
    divisors = (each for each in range(max(size // _NEAR, 2), _NEAR * size + 1) if block.count % each == 0)
    return min(divisors, key=lambda each: max(each / size, size / each), default=size)
