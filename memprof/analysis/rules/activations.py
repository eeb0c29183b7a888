"""Values of the forward pass that the backward pass uses."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.dataflow import Use
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.computed_in is not Phase.FORWARD or not value.use & (Use.BACKWARD | Use.RECOMPUTE):
        return None
    return Category.ACTIVATIONS, "made in the forward pass, used in the backward pass"


RULE = Rule(name="activations", order=90, explain=_explain)
