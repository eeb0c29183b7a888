"""The batch in minibatches, one after another, whose gradients are added up."""

from __future__ import annotations

import re
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Phase
from memprof.workloads.evidence import loop_direction, loop_scopes, no, yes
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.scopes import MINIBATCHES
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique
from memprof.workloads.train_config import TrainConfig, require

_NUM_MINIBATCHES = "[1-9][0-9]*"


def accumulation_loop_evidence(seen: Observation) -> Verdict:
    """Looks for a loop over that many minibatches."""
    loops = [loop for loop in seen.report.program.loops if MINIBATCHES in loop_scopes(loop)]
    outermost = [loop for loop in loops if loop_direction(loop) is None]
    counts = sorted({loop.trip_count or 0 for loop in outermost})
    if seen.argument in counts and seen.argument != 1:
        return yes(f"a loop runs {seen.argument} times over forward and backward pass and adds up the gradients")
    if not counts:
        return no(f"no loop over {seen.argument} minibatches was found")
    return no(f"the loop over minibatches runs {counts[0]} times instead of {seen.argument}, and more than once")


def unrolled_accumulation_evidence(seen: Observation) -> Verdict:
    """Looks for a copy of the backward pass for each of that many minibatches."""
    copies = {
        part
        for operations in seen.report.program.operations
        if operations.phase is Phase.BACKWARD
        for part in operations.scope.split("/")
        if re.fullmatch(f"{MINIBATCHES}_[0-9]+", part)
    }
    if len(copies) == seen.argument and seen.argument != 1:
        return yes(f"the program holds {seen.argument} copies of the backward pass, one for each minibatch")
    return no(
        f"the program holds {len(copies)} copies of the backward pass for minibatches; {seen.argument} were expected"
    )


def check_divides(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` unless the batch can be split into minibatches of equal size."""
    batch_size, num_minibatches = config.batch_size, train_config.num_minibatches
    require(
        batch_size % num_minibatches == 0,
        f"batch_size is {batch_size}, but it must be a multiple of the {num_minibatches} minibatches: change one of "
        "them.",
    )


ACCUM = Technique(
    name="accum",
    about="""Run the batch as N minibatches, one after another in a loop, and add up their gradients.

    Only one minibatch's activations exist at a time. The accumulator holds one float32 per parameter, beside the
    gradients of the current minibatch. The gradients equal those of the whole batch, however the padding is
    distributed (see `gradients.py`).""",
    summary="gradients of N minibatches added up in a loop (lax.scan); the batch must be a multiple of N",
    instruction="Add up the gradients of the batch's <N> parts in a loop, and divide the sum by <N>.",
    code="""def add(total, part):
    return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None


parts = jax.tree.map(lambda x: x.reshape(<N>, -1, *x.shape[1:]), batch)
total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
gradients = jax.tree.map(lambda x: x / <N>, total)""",
    reference="UvA Deep Learning Tutorials, Training Models at Scale: https://uvadlc-notebooks.readthedocs.io",
    sets={"num_minibatches": ARGUMENT, "accumulation": "scan"},
    argument=Argument(spelling="accum<N>", pattern=_NUM_MINIBATCHES, example="2", parse=int),
    evidence=accumulation_loop_evidence,
    check_config=check_divides,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.GRADIENTS,),
)

ACCUM_LOOP = Technique(
    name="accum-loop",
    about="""Accumulate gradients like `accum<N>`, with one copy of the forward and backward pass per minibatch.

    A Python loop instead of `lax.scan`. XLA sees N copies: compiling takes longer, and XLA may run them in any order,
    which may keep the activations of several minibatches live at once. Compare it with `accum<N>` to see the effect of
    the loop.""",
    summary="gradients of N minibatches added up by N copies of the pass; the batch must be a multiple of N",
    instruction="Add up the gradients of <N> parts of the batch in an unrolled loop, and divide the sum by <N>.",
    code="""parts = jax.tree.map(lambda x: x.reshape(<N>, -1, *x.shape[1:]), batch)
each = [jax.grad(loss)(params, jax.tree.map(lambda x: x[number], parts)) for number in range(<N>)]
gradients = jax.tree.map(lambda *each: sum(each) / <N>, *each)""",
    reference="UvA Deep Learning Tutorials, Training Models at Scale: https://uvadlc-notebooks.readthedocs.io",
    sets={"num_minibatches": ARGUMENT, "accumulation": "unrolled"},
    argument=Argument(spelling="accum<N>-loop", pattern=_NUM_MINIBATCHES, example="2", parse=int),
    evidence=unrolled_accumulation_evidence,
    check_config=check_divides,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.GRADIENTS,),
)

TECHNIQUES = (ACCUM, ACCUM_LOOP)


def over_minibatches(intent: Intent) -> Means:
    """The user divides the batch into as many minibatches as advice says."""
    return Means(
        words=f"Compute the gradients of {intent.num_parts} minibatches in a jax.lax.scan, and add them up.",
        technique=f"{ACCUM.name}{intent.num_parts}",
    )


MEANS = {
    Aim.ACCUMULATE_GRADIENTS: over_minibatches,
    Aim.CAST_ACCUMULATORS: Means(
        code="zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)\n"
        "add = lambda total, gradients: jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, gradients)"
    ),
}
