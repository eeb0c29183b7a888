"""What several rules ask of the optimizer state and the results that are its next one."""

from __future__ import annotations

from collections import Counter

from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.what_if import Instead, Without


def optimizer_state(report: Report) -> list[LiveBuffer]:
    """The buffers of the optimizer state that the step is given."""
    return [buffer for buffer in report.buffers if buffer.category is Category.OPTIMIZER_STATE and buffer.held is None]


def with_optimizer_state_of(report: Report, size_bytes: int) -> Without:
    """What buffers become if the optimizer state held `size_bytes` in all.

    Without donation the next state lies among the results. Those have no names: of results that have the shape of
    parameters and of optimizer state, as many are taken for state as there are leaves of it.
    """
    state = optimizer_state(report)
    share = size_bytes / max(1, sum(buffer.size_bytes for buffer in state))
    num_state = Counter((buffer.dtype, buffer.shape) for buffer in state)
    donated = {leaf.path for leaf in report.arguments if leaf.donated}
    num_given = Counter(
        (buffer.dtype, buffer.shape)
        for buffer in report.buffers
        if buffer.held is None and buffer.op not in donated and buffer.category is not Category.OUTPUTS
    )

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.held is not None:
            return None
        if buffer.category is Category.OPTIMIZER_STATE:
            return Instead(size_bytes=round(share * buffer.size_bytes))
        kind = (buffer.dtype, buffer.shape)
        if buffer.category is Category.OUTPUTS and num_given[kind] and num_state[kind]:
            of_state = min(1.0, num_state[kind] / num_given[kind])
            return Instead(size_bytes=round(buffer.size_bytes * (1 - of_state * (1 - share))))
        return None

    return without
