"""Values of the forward pass that die in it."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.computed_in is not Phase.FORWARD:
        return None
    return Category.FORWARD_TEMPS, "made and used in the forward pass"


RULE = Rule(name="forward_temps", order=100, explain=_explain)
