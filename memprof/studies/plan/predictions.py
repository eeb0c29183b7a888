"""Predict the footprint of a step with checkpoints: an estimate from its trace, corrected by earlier compiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from memprof.analysis.records.checkpoints import Checkpoints, Signature

# Of all bytes that could be kept: the extra distance of a step without checkpoints, and of one that keeps nothing.
# XLA fuses and schedules these two differently from the others, unless the others keep nearly the same.
_EXTREME_DISTANCE = 0.6
_FULL_DISTANCE = 0.05  # of all bytes that could be kept: from here on, the extra distance counts in full
_MIN_DEVIATION = 0.02  # of a footprint: least standard deviation of estimates; few compiles may agree by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compile and its estimates.

    Attributes:
        checkpoints: None for the step without checkpoints.
        peaks: the estimated peaks, one for each order of the kernels.
    """

    checkpoints: Checkpoints | None
    peaks: tuple[int, ...]
    footprint_bytes: int


def predicted_bytes(
    checkpoints: Checkpoints,
    peaks: Sequence[int],
    compiled: Sequence[Compiled],
    *,
    around_bytes: int,
    sizes: Mapping[Signature, int],
    everything: Collection[Signature],
    num_blocks: int,
) -> int:
    """Predict the footprint of a step with checkpoints.

    Each estimate is corrected by the weighted mean difference between footprints and estimates of the compiles. A
    compile's weight is the inverse square of its distance: the bytes that either it or the checkpoints keep, but not
    both. The footprint is the mean of the corrected estimates, weighted by the inverse variance of their differences.
    The size of arguments and results counts as one more difference, because estimates leave them out. No footprint is
    smaller than these.

    Args:
        peaks: the estimates for the checkpoints.
        compiled: at least one compile.
        around_bytes: bytes of the arguments and results of the step.
        sizes: bytes of the results of each operation in all blocks.
        everything: the operations whose results the backward pass needs; a step without checkpoints keeps them.
    """
    wanted = _shares(checkpoints, everything, num_blocks)
    total = sum(sizes[each] for each in everything)

    def weight(each: Compiled) -> float:
        shares = _shares(each.checkpoints, everything, num_blocks)
        distance_bytes = sum(
            sizes[one] * abs(wanted.get(one, 0.0) - shares.get(one, 0.0)) for one in {*wanted, *shares}
        )
        extra_bytes = _EXTREME_DISTANCE * min(total, distance_bytes / _FULL_DISTANCE) * _is_extreme(each.checkpoints)
        return max(distance_bytes + extra_bytes, 1.0) ** -2

    weights = [weight(each) for each in compiled]
    noise = (_MIN_DEVIATION * compiled[0].footprint_bytes) ** 2
    corrected, precisions = [], []
    for number, peak in enumerate(peaks):
        differences = [each.footprint_bytes - each.peaks[number] for each in compiled]
        corrected.append(peak + fmean(differences, weights))
        precisions.append(1 / (pvariance([*differences, around_bytes]) + noise))
    return max(round(fmean(corrected, precisions)), around_bytes)


def _is_extreme(checkpoints: Checkpoints | None) -> bool:
    """Whether a step has no checkpoints, or keeps nothing in any block."""
    return checkpoints is None or (not checkpoints.kept and checkpoints.num_first is None)


def _shares(
    checkpoints: Checkpoints | None, everything: Collection[Signature], num_blocks: int
) -> dict[Signature, float]:
    """Return, for each operation, the share of blocks that keep its results."""
    if checkpoints is None:
        return dict.fromkeys(everything, 1.0)
    if checkpoints.group_size is not None:  # only one group of iterations at a time keeps results
        return dict.fromkeys(checkpoints.kept, checkpoints.group_size / num_blocks)
    first = 1.0 if checkpoints.num_first is None else checkpoints.num_first / num_blocks
    shares = dict.fromkeys(checkpoints.kept, first)
    for each in everything if checkpoints.kept_by_rest is None else checkpoints.kept_by_rest:
        shares[each] = shares.get(each, 0.0) + 1.0 - first
    return shares
