"""Values of the backward pass that are no gradients of parameters."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.computed_in is not Phase.BACKWARD:
        return None
    return Category.COTANGENTS, "made and used in the backward pass"


RULE = Rule(name="cotangents", order=120, explain=_explain)
