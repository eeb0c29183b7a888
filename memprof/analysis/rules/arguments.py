"""Memory of an argument belongs to the category of the argument's role.

XLA may write results into the memory of a donated argument, or values on their way there; it is the caller's memory
all the same, and is counted once, here.
"""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.argument is None:
        return None
    donated = ", donated" if value.argument.donated else ""
    return Category(value.argument.role.value), f"argument {value.argument.path}{donated}"


RULE = Rule(name="arguments", order=10, explain=_explain)
