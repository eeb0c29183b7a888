"""Predict the footprint of checkpoints: an estimate of the traced step, corrected by the compiles so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev

from memprof.analysis.records.checkpoints import Checkpoints, Signature

_UNLIKE = 0.3  # of all that could be kept: the distance of a step without checkpoints, which XLA treats differently


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compile, and what was estimated for it.

    Attributes:
        checkpoints: None for the step without checkpoints.
        peaks: the estimates, each for one order of the operations.
    """

    checkpoints: Checkpoints | None
    peaks: tuple[int, ...]
    footprint_bytes: int


def predicted_bytes(
    checkpoints: Checkpoints,
    peaks: Sequence[int],
    compiled: Sequence[Compiled],
    *,
    sizes: Mapping[Signature, int],
    num_blocks: int,
) -> int:
    """Return the footprint of checkpoints.

    It is the estimate plus a difference, that of the compile whose checkpoints keep the most similar values. Of the
    estimates, that one counts whose differences vary least between the compiles: its order resembles XLA's.

    Args:
        peaks: the estimates for the checkpoints.
        compiled: at least one compile.
        sizes: bytes of the results of each operation in all blocks.
    """
    order = min(range(len(peaks)), key=lambda number: pstdev(_difference(each, number) for each in compiled))
    nearest = min(compiled, key=lambda each: _distance(checkpoints, each.checkpoints, sizes, num_blocks))
    return peaks[order] + _difference(nearest, order)


def _difference(compiled: Compiled, order: int) -> int:
    return compiled.footprint_bytes - compiled.peaks[order]


def _distance(first: Checkpoints, second: Checkpoints | None, sizes: Mapping[Signature, int], num_blocks: int) -> float:
    """Return the bytes that one of them keeps and the other does not."""
    apart = sum(
        size * abs(_share(first, each, num_blocks) - _share(second, each, num_blocks)) for each, size in sizes.items()
    )
    return apart + (_UNLIKE * sum(sizes.values()) if second is None else 0.0)


def _share(checkpoints: Checkpoints | None, signature: Signature, num_blocks: int) -> float:
    """Return the share of the blocks that keep the results of an operation."""
    if checkpoints is None:
        return 1.0
    first = 1.0 if checkpoints.num_first is None else checkpoints.num_first / num_blocks
    is_kept_by_rest = checkpoints.kept_by_rest is None or signature in checkpoints.kept_by_rest
    return first * (signature in checkpoints.kept) + (1 - first) * is_kept_by_rest
