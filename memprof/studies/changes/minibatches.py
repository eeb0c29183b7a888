"""Accumulate a step's gradients over minibatches. Data flow shows that its loss is a sum over the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    yield from _in_parts(step, lambda numbers: [number for number in numbers if number <= _NUM_PARTS][-1:])


def accumulated_more_and_more(step: Step) -> Iterator[Change]:
    """Yield the step with accumulated gradients, each time over at least twice as many minibatches."""

    def doubled(numbers: list[int]) -> list[int]:
        found: list[int] = []
        for number in numbers:
            if not found or number >= 2 * found[-1]:
                found.append(number)
        return found

    yield from _in_parts(step, doubled)


def _in_parts(step: Step, select: Callable[[list[int]], list[int]]) -> Iterator[Change]:
    """Yield a change for each of the chosen numbers of minibatches, among those that divide the examples."""
    if step.is_composed:
        return
    is_interleaved = step.target.topology.num_devices > 1
    try:
        with in_minibatches(InMinibatches(number=_MAX_PARTS, interleaved=is_interleaved)) as losses:
            traced_jaxpr(step.spec, step.target)
    except MemprofError:
        return
    num_examples = min(each.num_examples for each in losses if each.num_examples is not None)
    for number in select([each for each in range(2, _MAX_PARTS + 1) if num_examples % each == 0]):
        options = f"number={number}" + (", interleaved=True" if is_interleaved else "")
        code = applied_code(step.spec, f"memprof.apply(memprof.InMinibatches({options}))")
        if code is None:
            return
        yield Change(
            rule=RULE,
            intent=Intent(aim=Aim.ACCUMULATE_GRADIENTS, num_parts=number),
            what=f"Accumulate the gradients of {number} minibatches of {_examples(num_examples // number)}",
            evidence=f"by data flow, the loss is a sum over {num_examples:,} examples",
            cost=f"nothing is recomputed, but each product has 1/{number} of the rows; sums of the gradients are live"
            " during the passes",
            code=code,
            spec=step_of_code(step.spec, code),
            rewrite=InMinibatches(number=number, interleaved=is_interleaved),
            is_proved=True,
        )


def _examples(number: int) -> str:
    return "1 example" if number == 1 else f"{number:,} examples"
