"""Tables of pointers to the elements of a tuple: scratch of the runtime, a few bytes each."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    return (Category.WORKSPACE, "table of pointers to the elements of a tuple") if value.is_tuple_table else None


RULE = Rule(name="tuple_tables", order=30, explain=_explain)
