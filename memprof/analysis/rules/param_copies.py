"""Values that depend on parameters alone, in whatever phase they are made.

With float32 parameters and bfloat16 compute these are the bfloat16 casts that the backward pass keeps; also transposes
for a layout, and parameters gathered from other devices.
"""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.dataflow import ROLES, Origin
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.origin & ROLES != Origin.PARAMS:
        return None
    return Category.PARAM_COPIES, "depends on parameters alone"


RULE = Rule(name="param_copies", order=60, explain=_explain)
