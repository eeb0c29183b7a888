"""Gradients of parameters: values of the backward pass that the update uses.

Partial sums of a gradient belong to it, and so do accumulators over minibatches, clipped and averaged gradients: what
works on gradients after differentiation, as long as neither parameters nor optimizer state come in.
"""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.dataflow import Use
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.computed_in is not Phase.BACKWARD:
        return None
    if value.use & Use.GRADIENT:
        return Category.GRADIENTS, "made in the backward pass, used by the update"
    if value.is_past_differentiation:
        return Category.GRADIENTS, "made from gradients alone"
    return None


RULE = Rule(name="gradients", order=110, explain=_explain)
