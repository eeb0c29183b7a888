"""Predict the footprint of checkpoints: an estimate of the traced step, corrected by the compiles so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev

from memprof.analysis.records.checkpoints import Checkpoints, Signature

# Of all bytes that could be kept: the extra distance of a step without checkpoints, and of one that keeps nothing.
# XLA fuses and orders these two differently from the others.
_UNLIKE = 0.6


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

    It is the estimate plus a weighted mean of the differences between the footprints and estimates of the compiles. The
    weight of a compile is the inverse square of the bytes that either it or the checkpoints keep, but not both. The
    estimates differ in their order of operations. The one whose differences vary least between the compiles is used,
    because its order resembles XLA's; the steps that keep all values or none are left out of this comparison if two
    other compiles exist.

    Args:
        peaks: the estimates for the checkpoints.
        compiled: at least one compile.
        sizes: bytes of the results of each operation in all blocks.
        everything: the operations whose results the backward pass needs; a step without checkpoints keeps them.
    """
    alike = [each for each in compiled if not _is_extreme(each.checkpoints)]
    compared = alike if len(alike) > 1 else compiled
    order = min(range(len(peaks)), key=lambda number: pstdev(_difference(each, number) for each in compared))
    wanted = _shares(checkpoints, everything, num_blocks)
    unlike_bytes = _UNLIKE * sum(sizes[each] for each in everything)

    def weight(each: Compiled) -> float:
        shares = _shares(each.checkpoints, everything, num_blocks)
        apart = sum(sizes[one] * abs(wanted.get(one, 0.0) - shares.get(one, 0.0)) for one in {*wanted, *shares})
        return max(apart + unlike_bytes * _is_extreme(each.checkpoints), 1.0) ** -2

    weights = [weight(each) for each in compiled]
    differences = (share * _difference(each, order) for share, each in zip(weights, compiled, strict=True))
    return round(peaks[order] + sum(differences) / sum(weights))


def _is_extreme(checkpoints: Checkpoints | None) -> bool:
    """Whether a step keeps all values, or none of those that the backward pass needs."""
    return checkpoints is None or (not checkpoints.kept and checkpoints.num_first is None)


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
