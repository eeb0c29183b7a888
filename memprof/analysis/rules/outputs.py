"""Memory of a result that aliases no argument: the cost of not donating.

The table of pointers to the results belongs to it.
"""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if not value.is_output:
        return None
    return Category.OUTPUTS, "table of pointers to the results" if value.is_tuple_table else "result of the step"


RULE = Rule(name="outputs", order=20, explain=_explain)
