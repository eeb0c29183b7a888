"""Results that could lie in the memory of arguments which the caller gives away."""

from __future__ import annotations

from collections import Counter

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.what_if import Instead
from memprof.analysis.categories import Category, Role
from memprof.analysis.report import LiveBuffer, Report

_STATE = (Role.PARAMS, Role.OPTIMIZER_STATE, Role.OTHER_STATE)


def _propose(report: Report) -> tuple[Proposal, ...]:
    arguments = [
        buffer
        for buffer in report.buffers
        if buffer.held is None and buffer.category in {Category(role.value) for role in _STATE}
    ]
    donated = {leaf.path for leaf in report.arguments if leaf.donated}
    kept = [buffer for buffer in arguments if buffer.op not in donated]
    free = Counter((buffer.dtype, buffer.shape) for buffer in kept)
    aliased: set[int] = set()
    for buffer in report.buffers:
        kind = (buffer.dtype, buffer.shape)
        if buffer.category is Category.OUTPUTS and free[kind]:
            free[kind] -= 1
            aliased.add(id(buffer))
    if not aliased:
        return ()
    size_bytes = sum(buffer.size_bytes for buffer in report.buffers if id(buffer) in aliased)

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=0) if id(buffer) in aliased else None

    return (
        Proposal(
            what="Donate the state: the new state takes its memory",
            evidence=f"{len(aliased)} results, {size_bytes:,} bytes, have the shape of an argument that is not donated",
            cost="none, but the old state cannot be used any more",
            how_to="step = jax.jit(step, donate_argnums=(0,))  # the argument that holds the state",
            without=without,
            technique="donate",
        ),
    )


RULE = AdviceRule(name="donate_state", propose=_propose)
