"""Predict the footprint of checkpoints: an estimate of the traced step, corrected by the compiles so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from memprof.analysis.records.checkpoints import Checkpoints, Signature

# Of all bytes that could be kept: the extra distance of a step without checkpoints, and of one that keeps nothing.
# XLA fuses and orders these two differently from the others, unless the others keep nearly the same.
_UNLIKE = 0.6
_ALIKE = 0.05  # of all bytes that could be kept: at this distance, the extra distance counts completely
_NOISE = (
    0.02  # of a footprint: a standard deviation that estimates have at least, as a few compiles may agree by chance
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compile, and what was estimated for it.

    Attributes:
        checkpoints: None for the step without checkpoints.
        peaks: the estimates, each for one order of the kernels.
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
    """Return the footprint of checkpoints.

    Each estimate is corrected by a weighted mean of the differences between the footprints and estimates of the
    compiles. The weight of a compile is the inverse square of the bytes that either it or the checkpoints keep, but not
    both. The footprint is a weighted mean of the corrected estimates. The weight of an estimate is the inverse variance
    of its differences. The size of the arguments and results counts as one more difference, because an estimate leaves
    them out.

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
        apart = sum(sizes[one] * abs(wanted.get(one, 0.0) - shares.get(one, 0.0)) for one in {*wanted, *shares})
        unlike_bytes = _UNLIKE * min(total, apart / _ALIKE) * _is_extreme(each.checkpoints)
        return max(apart + unlike_bytes, 1.0) ** -2

    weights = [weight(each) for each in compiled]
    noise = (_NOISE * compiled[0].footprint_bytes) ** 2
    corrected, trust = [], []
    for number, peak in enumerate(peaks):
        differences = [each.footprint_bytes - each.peaks[number] for each in compiled]
        corrected.append(peak + fmean(differences, weights))
        trust.append(1 / (pvariance([*differences, around_bytes]) + noise))
    return round(fmean(corrected, trust))


def _is_extreme(checkpoints: Checkpoints | None) -> bool:
    """Whether a step keeps all values, or none of those that the backward pass needs."""
    return checkpoints is None or (not checkpoints.kept and checkpoints.num_first is None)


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
