"""Optimizer state as large as the parameters, or twice."""

from __future__ import annotations

from math import prod

from memprof.analysis.categories import Role
from memprof.analysis.report import Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.optimizer import optimizer_state, with_optimizer_state_of
from memprof.studies.advice.what_if import amount, changed_at_peak

_SMALLEST_FACTORED = 128  # optax.adafactor's min_dim_size_to_factor
_FLOAT32 = 4


def _propose(report: Report) -> tuple[Proposal, ...]:
    params = [leaf for leaf in report.arguments if leaf.role is Role.PARAMS]
    state_bytes = sum(buffer.size_bytes for buffer in optimizer_state(report))
    factored_bytes = sum(_factored_bytes(leaf.shape) for leaf in params)
    if state_bytes <= 2 * factored_bytes:
        return ()
    without = with_optimizer_state_of(report, factored_bytes)
    changed = changed_at_peak(report, without)
    per_param = state_bytes / max(1, report.num_params)
    return (
        Proposal(
            what="Use an optimizer with factored second moments (Adafactor)",
            evidence=f"{amount(changed, 'arrays')}, are optimizer state and results that may be its next one: "
            f"{per_param:.1f} bytes of state for each parameter, where factored moments hold "
            f"{factored_bytes / max(1, report.num_params):.2f}",
            cost="another optimizer: training takes another course, and the learning rate has to be found again",
            how_to="optimizer = optax.adafactor(learning_rate)",
            without=without,
            technique="opt=adafactor",
        ),
    )


def _factored_bytes(shape: tuple[int, ...]) -> int:
    """State of one parameter under Adafactor without momentum (Shazeer and Stern 2018, algorithm 4), in float32.

    The mean squares of a matrix are kept by row and by column, for the two largest dimensions of an array; those of
    small arrays and vectors are kept whole.
    """
    large = sorted(shape)[-2:]
    if len(large) < 2 or large[0] < _SMALLEST_FACTORED:
        return _FLOAT32 * prod(shape)
    return _FLOAT32 * (prod(shape) // large[0] + prod(shape) // large[1])


RULE = AdviceRule(name="factored_optimizer", propose=_propose)
