"""A peak in the optimizer update, when forward and backward pass are over."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.passing import MADE_IN_PASSES, made_at
from memprof.analysis.advice.what_if import Instead
from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report


def _propose(report: Report) -> tuple[Proposal, ...]:
    passes_end = max((b.start for b in report.temp_buffers if b.category in MADE_IN_PASSES), default=-1)
    needed = _first_gradients(report)

    def is_of_update(buffer: LiveBuffer) -> bool:
        if buffer.held is None or buffer.start <= passes_end or buffer.held in needed:
            return False
        return buffer.category in (Category.GRADIENTS, Category.UPDATE_TEMPS)

    temps = [buffer for buffer in report.buffers if is_of_update(buffer)]
    if not temps:
        return ()
    largest = temps[0]  # buffers are sorted by size
    return (
        Proposal(
            what="Update one parameter after another",
            evidence=f"the peak lies after the backward pass, where the update holds {len(temps)} arrays, "
            f"{sum(buffer.size_bytes for buffer in temps):,} bytes; the largest is made at "
            f"{made_at(largest)}",
            cost="none, if what needs all gradients at once gives back a scalar, as their norm does",
            how_to="updates = jax.tree.map(update_one, gradients, params)  # not one stacked or flattened array",
            without=lambda buffer: Instead(size_bytes=0) if is_of_update(buffer) else None,
        ),
    )


def _first_gradients(report: Report) -> set[tuple[int, int] | None]:
    """Those that have to be there, told by `held`: as many bytes as there are parameters, the first that are made.

    What is made of a gradient, scaled or stacked, has its category.
    """
    left = report.categories[Category.PARAMS]
    needed = set()
    for buffer in sorted(report.temp_buffers, key=lambda buffer: buffer.start):
        if buffer.category is Category.GRADIENTS and buffer.size_bytes <= left:
            left -= buffer.size_bytes
            needed.add(buffer.held)
    return needed


RULE = AdviceRule(name="update_peak", propose=_propose)
