"""Points of a plan: JAX's built-in policies, the point of a compile, and the order of points."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.checkpoints import Block, Checkpoints, Signature
from memprof.analysis.records.device_family import HOST
from memprof.analysis.records.report import Report
from memprof.studies.plan.plan import DOTS, DOTS_WITHOUT_BATCH, PlanPoint


def signatures_of(blocks: Sequence[Block]) -> set[Signature]:
    """Return the signatures of all operations."""
    return {each.signature for block in blocks for each in block.operations}


def built_in_policies(blocks: Sequence[Block]) -> dict[str, set[Signature]]:
    """Return the operations that JAX's policies keep, by the name of the policy."""
    products = {each for each in signatures_of(blocks) if each.primitive == "dot_general"}
    without_batch = {each for each in products if each.dimension_numbers.endswith("((), ()))")}
    return {DOTS: products, DOTS_WITHOUT_BATCH: without_batch}


def cost(point: PlanPoint) -> tuple[bool, bool, float, int, int]:
    """Return the sort key of a point: one without checkpoints comes first, then time, FLOPs and footprint decide."""
    has_bound = point.at_least_seconds is not None
    return (
        point.checkpoints is not None, not has_bound, point.seconds, point.recomputed_flops, point.footprint_bytes
    )  # fmt: skip


def point_of(
    name: str,
    report: Report,
    checkpoints: Checkpoints | None,
    *,
    kept_bytes: int,
    repeated_seconds: float,
    waiting_seconds: float = 0.0,
) -> PlanPoint:
    """Return the point of a compile."""
    return PlanPoint(
        name=name,
        checkpoints=checkpoints,
        kept_bytes=kept_bytes,
        repeated_seconds=repeated_seconds,
        waiting_seconds=waiting_seconds,
        at_least_seconds=None if report.roofline is None else report.roofline.at_least_seconds,
        host_bytes=report.memory_spaces.get(HOST, 0),
        footprint_bytes=report.unpressed.footprint_bytes,
        recomputed_flops=report.recomputed_flops,
    )
