"""Accumulate a step's gradients over minibatches. Data flow shows that its loss is a sum over the examples."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.rewrites import InMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.minibatches import in_minibatches
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import applied_code, step_of_code
from memprof.workloads.intents import Aim, Intent

RULE = "accumulated_gradients"
_NUM_PARTS = 4
_MAX_PARTS = 64


def accumulated(step: Step) -> Iterator[Change]:
    """Yield the step with its gradients accumulated over four minibatches, or fewer."""
    yield from _in_parts(step, [_NUM_PARTS])


def accumulated_more_and_more(step: Step) -> Iterator[Change]:
    """Yield the step with its gradients accumulated over more and more minibatches, each half as large."""
    yield from _in_parts(step, [2**power for power in range(1, _MAX_PARTS.bit_length())])


def _in_parts(step: Step, numbers: list[int]) -> Iterator[Change]:
    if step.is_composed:
        return
    is_interleaved = step.target.topology.num_devices > 1
    try:
        with in_minibatches(InMinibatches(number=numbers[0], interleaved=is_interleaved)) as losses:
            traced_jaxpr(step.spec, step.target)
    except MemprofError:
        return
    num_examples = min(each.num_examples for each in losses if each.num_examples is not None)
    whole = [each for each in numbers if num_examples % each == 0] or [_smallest_divisor(num_examples)]
    for number in whole:
        options = f"number={number}" + (", interleaved=True" if is_interleaved else "")
        code = applied_code(step.spec, f"memprof.apply(memprof.InMinibatches({options}))")
        if code is None:
            return
        yield Change(
            rule=RULE,
            intent=Intent(aim=Aim.ACCUMULATE_GRADIENTS, num_parts=number),
            what=f"Accumulate the gradients of {number} minibatches",
            evidence=f"by data flow, the loss is a sum over {num_examples:,} examples",
            cost=f"nothing is recomputed, but each product has 1/{number} of the rows; sums of the gradients are live"
            " during the passes",
            code=code,
            spec=step_of_code(step.spec, code),
            rewrite=InMinibatches(number=number, interleaved=is_interleaved),
        )


def _smallest_divisor(number: int) -> int:
    return next(each for each in range(2, number + 1) if number % each == 0)
