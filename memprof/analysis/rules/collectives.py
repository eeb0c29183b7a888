"""Buffers of cross-device communication."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value

_COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter"}
)


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.opcode.removesuffix("-start").removesuffix("-done") not in _COLLECTIVES:
        return None
    return Category.COLLECTIVES, f"result of {value.opcode}"


RULE = Rule(name="collectives", order=70, explain=_explain)
