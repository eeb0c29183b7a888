"""A peak in the optimizer update, when forward and backward pass are over."""

from __future__ import annotations

from memprof.analysis.categories import Category, Role
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.passing import made_at
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak


def _propose(report: Report) -> tuple[Proposal, ...]:
    """Only arrays that are larger than any parameter could be made one parameter after another."""
    backward_end = report.program.backward_end
    if not -1 < backward_end < report.timeline.peak_position:
        return ()
    largest_param = max((leaf.size_bytes for leaf in report.arguments if leaf.role is Role.PARAMS), default=0)

    def without(buffer: LiveBuffer) -> Instead | None:
        is_of_update = (
            buffer.held is not None
            and buffer.start > backward_end
            and buffer.category in (Category.GRADIENTS, Category.UPDATE_TEMPS)
        )
        return Instead(size_bytes=largest_param) if is_of_update and buffer.size_bytes > largest_param else None

    stacked = changed_at_peak(report, without)
    if not (stacked and largest_param):
        return ()
    return (
        Proposal(
            what="Update one parameter after another",
            evidence=f"the peak lies after the last operation of the backward pass, where {amount(stacked, 'arrays')},"
            f" are larger than any parameter; the largest is made at {made_at(stacked[0])}",
            cost="none, if what needs all gradients at once gives back a scalar, as their norm does",
            how_to="updates = jax.tree.map(update_one, gradients, params)  # not one stacked or flattened array",
            without=without,
        ),
    )


RULE = AdviceRule(name="update_peak", propose=_propose)
