"""Results that could lie in the memory of arguments which the caller gives away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.categories import Category, Phase, Role
from memprof.analysis.module_paths import path_keys
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak

_STATE = (Role.PARAMS, Role.OPTIMIZER_STATE, Role.OTHER_STATE)


def _propose(report: Report) -> tuple[Proposal, ...]:
    """Results of the update, each beside an argument of its shape, parameters first."""
    free: dict[tuple[str, tuple[int, ...]], list[ArgumentLeaf]] = defaultdict(list)
    given = {buffer.op: buffer for buffer in report.buffers if buffer.category in set(map(Category, _STATE))}
    for role in _STATE:
        for leaf in report.arguments:
            if leaf.role is role and not leaf.donated and leaf.path in given:
                free[given[leaf.path].dtype, given[leaf.path].shape].append(leaf)
    aliased: dict[int, ArgumentLeaf] = {}
    for buffer in report.buffers:
        leaves = free[buffer.dtype, buffer.shape]
        is_next = buffer.category is Category.OUTPUTS and leaves
        # Gradients that are results, and predictions, only look like parameters.
        if is_next and (buffer.phase is Phase.UPDATE or leaves[0].role is Role.OTHER_STATE):
            aliased[id(buffer)] = leaves.pop(0)
    if not aliased:
        return ()

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=0) if id(buffer) in aliased else None

    changed = changed_at_peak(report, without)
    return (
        Proposal(
            what="Donate the state: the new state takes its memory",
            evidence=f"{amount(changed, 'results')}, have the shape of an argument that is not donated",
            cost="none, but the old state cannot be used any more",
            how_to=f"step = jax.jit(step, {_donation(list(aliased.values()))})",
            without=without,
            technique="donate",
        ),
    )


def _donation(leaves: Sequence[ArgumentLeaf]) -> str:
    """What `jax.jit` is told to donate: arguments as a whole, by their numbers, or by their names where they have none.

    A leaf of a pytree cannot be donated without the others.
    """
    numbers = sorted({leaf.position for leaf in leaves if leaf.position is not None})
    names = dict.fromkeys(path_keys(leaf.path)[0] for leaf in leaves if leaf.position is None)
    donated = [f"donate_argnums={tuple(numbers)}"] if numbers else []
    donated += [f"donate_argnames={tuple(names)}"] if names else []
    return ", ".join(donated)


RULE = AdviceRule(name="donate_state", propose=_propose)
