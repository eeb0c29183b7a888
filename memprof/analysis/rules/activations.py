"""Values of the forward pass that the backward pass uses.

A value of which a copy in another layout is made at once, and then dies, is none: its copy is.
"""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.dataflow import Use
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if (
        value.dies_in_forward
        or value.computed_in is not Phase.FORWARD
        or not value.use & (Use.BACKWARD | Use.RECOMPUTE)
    ):
        return None
    return Category.ACTIVATIONS, "made in the forward pass, used in the backward pass"


RULE = Rule(name="activations", order=90, explain=_explain)
