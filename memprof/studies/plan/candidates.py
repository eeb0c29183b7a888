"""Points of a plan: JAX's built-in policies, predictions before a compile, and the point of a compile."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from memprof.analysis.records.checkpoints import Block, Checkpoints, Signature
from memprof.analysis.records.report import Report
from memprof.studies.plan.choice import Choice
from memprof.studies.plan.plan import DOTS, DOTS_WITHOUT_BATCH, PlanPoint


def signatures_of(blocks: Sequence[Block]) -> set[Signature]:
    """Return the signatures of all operations."""
    return {each.signature for block in blocks for each in block.operations}


def built_in_policies(blocks: Sequence[Block]) -> dict[str, set[Signature]]:
    """Return the operations that JAX's policies keep, by the name of the policy."""
    products = {each for each in signatures_of(blocks) if each.primitive == "dot_general"}
    without_batch = {each for each in products if each.dimension_numbers.endswith("((), ()))")}
    return {DOTS: products, DOTS_WITHOUT_BATCH: without_batch}


def fewest_seconds(points: Sequence[PlanPoint], budget_bytes: int) -> float:
    """Return the shortest recomputation among the points within a budget; infinity if there are none."""
    within = (point.repeated_seconds for point in points if point.footprint_bytes <= budget_bytes)
    return min(within, default=inf)


def predicted_bytes(points: Sequence[PlanPoint], choice: Choice) -> int | None:
    """Return the footprint of a choice, interpolated between the points that keep less and more.

    Mixtures do not count. Of points that keep as much, the smallest counts: it has the allowed changes. The answer is
    None if no point keeps as little, or none as much.
    """
    single = [each for each in points if each.checkpoints is None or each.checkpoints.num_first is None]
    below = [each for each in single if each.kept_bytes <= choice.size_bytes]
    above = [each for each in single if each.kept_bytes >= choice.size_bytes]
    if not below or not above:
        return None
    low = max(below, key=lambda each: (each.kept_bytes, -each.footprint_bytes))
    high = min(above, key=lambda each: (each.kept_bytes, each.footprint_bytes))
    share = (choice.size_bytes - low.kept_bytes) / max(high.kept_bytes - low.kept_bytes, 1)
    return round(low.footprint_bytes + share * (high.footprint_bytes - low.footprint_bytes))


def point_of(
    name: str, report: Report, checkpoints: Checkpoints | None, *, kept_bytes: int, repeated_seconds: float
) -> PlanPoint:
    """Return the point of a compile."""
    return PlanPoint(
        name=name,
        checkpoints=checkpoints,
        kept_bytes=kept_bytes,
        repeated_seconds=repeated_seconds,
        footprint_bytes=report.unpressed.footprint_bytes,
        recomputed_flops=report.recomputed_flops,
    )
