"""Values of the forward pass that are computed again in the backward pass.

Either the program asks for it (`jax.checkpoint` names such operations), or XLA does it on its own to stay within the
device's memory (it appends `.remat` to the name of the instruction that it repeats).
"""

from __future__ import annotations

import re

from memprof.analysis.categories import Category, Phase
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value

_XLA_REMAT = re.compile(r"\.remat\d*(\.\d+)*$")


def _explain(value: Value) -> tuple[Category, str] | None:
    if value.computed_in is Phase.RECOMPUTE:
        return Category.RECOMPUTED, "made by jax.checkpoint in the backward pass"
    if _XLA_REMAT.search(value.name):
        return Category.RECOMPUTED, "rematerialised by XLA to save memory"
    return None


RULE = Rule(name="recomputed", order=80, explain=_explain)
