"""Scratch memory of library calls (cuBLAS, cuDNN, sort, ...).

XLA gives a library call its scratch as a further element of the call's result that nothing reads: an array of bytes.
"""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.rule import Rule
from memprof.analysis.values import Value


def _explain(value: Value) -> tuple[Category, str] | None:
    is_scratch = value.opcode == "custom-call" and value.element not in ((), (0,)) and value.dtype in ("u8", "s8")
    if not is_scratch or value.use:
        return None
    return Category.WORKSPACE, f"scratch of {value.custom_call_target}"


RULE = Rule(name="workspace", order=40, explain=_explain)
