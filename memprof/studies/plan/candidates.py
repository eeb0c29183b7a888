"""Candidates and points of a plan: JAX's built-in policies, the point of a compile, and the best point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.analysis.records.checkpoints import Block, Checkpoints, Signature
from memprof.analysis.records.device_family import HOST
from memprof.analysis.records.report import Report
from memprof.studies.plan.choice import Choice
from memprof.studies.plan.plan import DOTS, DOTS_WITHOUT_BATCH, NOTHING_KEPT, PlanPoint, ranking_seconds

_SCALED_PRODUCT = "scaled_matmul_wrapper"  # of `jax.nn.scaled_matmul`, with its batch first
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", _SCALED_PRODUCT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice to consider for a compile."""

    name: str
    choice: Choice


def signatures_of(blocks: Sequence[Block]) -> set[Signature]:
    """Return the signatures of all operations."""
    return {each.signature for block in blocks for each in block.operations}


def built_in_policies(blocks: Sequence[Block]) -> dict[str, set[Signature]]:
    """Map each of JAX's policies to the operations whose results it keeps."""
    products = {each for each in signatures_of(blocks) if each.primitive in _PRODUCTS}
    without_batch = {each for each in products if _has_no_batch(each)}
    return {DOTS: products, DOTS_WITHOUT_BATCH: without_batch}


def _has_no_batch(product: Signature) -> bool:
    if product.primitive == _SCALED_PRODUCT:
        return product.inputs[0][0][0] == 1
    return product.primitive == "dot_general" and product.dimension_numbers.endswith("((), ()))")


def best_within(points: Sequence[PlanPoint], budget_bytes: int) -> PlanPoint | None:
    """Return the unchanged step if it fits a budget, otherwise the fastest point that fits; None if no point does."""
    seconds = ranking_seconds(points)

    def cost(point: PlanPoint) -> tuple[bool, float, int, int]:
        return (point.checkpoints is not None, seconds(point), point.recomputed_flops, point.footprint_bytes)

    return min((each for each in points if each.footprint_bytes <= budget_bytes), key=cost, default=None)


def keeps_results(points: Sequence[PlanPoint], budget_bytes: int) -> bool:
    """Whether a point fits a budget, and the best one keeps results."""
    best = best_within(points, budget_bytes)
    return best is not None and best.name != NOTHING_KEPT


def point_of(
    name: str,
    report: Report,
    checkpoints: Checkpoints | None,
    *,
    kept_bytes: int,
    repeated_seconds: float,
    waiting_seconds: float = 0.0,
) -> PlanPoint:
    """Build the point of a compile."""
    unpressed = report.unpressed
    return PlanPoint(
        name=name,
        checkpoints=checkpoints,
        kept_bytes=kept_bytes,
        repeated_seconds=repeated_seconds,
        waiting_seconds=waiting_seconds,
        at_least_seconds=None if unpressed.roofline is None else unpressed.roofline.at_least_seconds,
        host_bytes=unpressed.memory_spaces.get(HOST, 0),
        footprint_bytes=unpressed.footprint_bytes,
        recomputed_flops=report.recomputed_flops,
    )
