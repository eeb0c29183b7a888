"""Choices for blocks in groups, where another checkpoint around each group saves only the inputs of its first block.

A scan of L iterations saves the carry of each one, and L layers in sequence save the input of each one. In groups of g,
they save L / g of these, and while the backward pass goes through a group, the inputs and kept results of g blocks.
Each group is computed once more for that. (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section
4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memprof.analysis.records.checkpoints import Block, Signature
from memprof.studies.changes.group_code import best_group_size
from memprof.studies.plan.choice import Choice, choice_of


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
    """Return the best number of blocks in a group; None if groups save nothing."""
    if block.inner_count is not None:  # a scan within another scan has groups already
        return block.inner_count
    kept_bytes = choice_of([replace(block, count=1)], kept).size_bytes
    return best_group_size(block.count, block.carried_bytes, kept_bytes)
