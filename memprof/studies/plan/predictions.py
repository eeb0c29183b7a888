"""Predict the footprint of checkpoints: an estimate of the traced step, corrected by the compiles so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    everything: Collection[Signature],
    num_blocks: int,
) -> int:
    """Return the footprint of checkpoints.

    It is the estimate plus a difference, that of the compile whose checkpoints keep the most similar values. If that is
    the step without checkpoints, the difference is interpolated between it and the most similar other one. Of the
    estimates, that one counts whose differences vary least between the compiles: its order resembles XLA's.

    Args:
        peaks: the estimates for the checkpoints.
        compiled: at least one compile.
        sizes: bytes of the results of each operation in all blocks.
        everything: the operations whose results the backward pass needs; a step without checkpoints keeps them.
    """
    order = min(range(len(peaks)), key=lambda number: pstdev(_difference(each, number) for each in compiled))
    wanted = _shares(checkpoints, everything, num_blocks)
    unlike_bytes = _UNLIKE * sum(sizes[each] for each in everything)

    def distance(each: Compiled) -> float:
        """Return the bytes that one of them keeps and the other does not."""
        shares = _shares(each.checkpoints, everything, num_blocks)
        apart = (sizes[one] * abs(wanted.get(one, 0.0) - shares.get(one, 0.0)) for one in {*wanted, *shares})
        return sum(apart) + (unlike_bytes if each.checkpoints is None else 0.0)

    first, *others = sorted(compiled, key=distance)
    if first.checkpoints is not None or not others:
        return peaks[order] + _difference(first, order)
    away, of_other = distance(first), distance(others[0])  # no compile with checkpoints is near: interpolate
    share = away / max(away + of_other, 1.0)
    return round(peaks[order] + (1 - share) * _difference(first, order) + share * _difference(others[0], order))


def _difference(compiled: Compiled, order: int) -> int:
    return compiled.footprint_bytes - compiled.peaks[order]


def _shares(
    checkpoints: Checkpoints | None, everything: Collection[Signature], num_blocks: int
) -> dict[Signature, float]:
    """Return the share of the blocks that keep the results of each operation."""
    if checkpoints is None:
        return dict.fromkeys(everything, 1.0)
    first = 1.0 if checkpoints.num_first is None else checkpoints.num_first / num_blocks
    shares = dict.fromkeys(checkpoints.kept, first)
    for each in everything if checkpoints.kept_by_rest is None else checkpoints.kept_by_rest:
        shares[each] = shares.get(each, 0.0) + 1.0 - first
    return shares
