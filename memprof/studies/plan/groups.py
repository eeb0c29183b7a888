"""Choices for blocks in groups, where another checkpoint around each group saves only the inputs of its first block.

See `changes/group_size.py` for what this saves and costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memprof.analysis.records.checkpoints import Block, Signature
from memprof.studies.changes.group_size import best_group_size
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
