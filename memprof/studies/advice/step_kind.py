"""Whether a report's step trains, and the categories of buffers that its passes make."""

from __future__ import annotations

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.report import Report

# Made in the forward and backward passes, and no gradient of a parameter.
MADE_IN_PASSES = frozenset(category for category in Category if category.is_of_passes)
_HELD_BY_TRAINING = frozenset(
    {Category.OPTIMIZER_STATE, Category.GRADIENTS, Category.ACTIVATIONS, Category.COTANGENTS, Category.RECOMPUTED}
)


def has_backward_pass(report: Report) -> bool:
    """Whether a step differentiates in reverse mode."""
    return any(each.phase is Phase.BACKWARD for each in report.program.operations)


def is_inference(report: Report) -> bool:
    """Whether a step trains nothing: it has no backward pass, and a cache or no memory that belongs to training."""
    if has_backward_pass(report):
        return False
    if report.categories[Category.KV_CACHE]:
        return True
    return bool(report.program.operations) and not any(report.categories[category] for category in _HELD_BY_TRAINING)
