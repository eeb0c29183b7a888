"""Values of the optimizer update."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.phase is not Phase.UPDATE:
        return None
    return Category.UPDATE_TEMPS, "made from gradients and optimizer state or parameters"


RULE = Rule(name="update_temps", order=130, explain=_explain)
