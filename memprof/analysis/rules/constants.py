"""Constants of the program, and values that depend on no argument at all (masks, position numbers, zeros)."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.dataflow import ROLES
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.is_constant:
        return Category.CONSTANTS, "constant of the program"
    return None if value.origin & ROLES else (Category.CONSTANTS, "depends on no argument")


RULE = Rule(name="constants", order=50, explain=_explain)
