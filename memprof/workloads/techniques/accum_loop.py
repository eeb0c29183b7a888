"""accum<N>-loop: the same accumulation, with one copy of the forward and backward pass for each minibatch.

A Python loop instead of `lax.scan`. XLA sees N copies: it compiles for longer, and it is free to run them in any order,
which may keep the activations of several minibatches at once. Against `accum<N>` the row shows what the loop is for.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.loops import unrolled_accumulation_evidence
from memprof.workloads.minibatches import MINIBATCHES, check_divides
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with so many minibatches, a copy of the program for each."""
    assert isinstance(argument, int)
    return dataclasses.replace(config, num_minibatches=argument, accumulation="unrolled")


TECHNIQUE = Technique(
    name="accum-loop",
    summary="gradients of N minibatches added up by N copies of the program; the batch must be a multiple of N",
    how_to=HowTo(
        sentence="Add up the gradients of the batch's <N> parts, one copy of the program for each, and divide the "
        "sum by <N>.",
        code="grads = jax.tree.map(lambda *each: sum(each), *(jax.grad(loss)(params, jax.tree.map(lambda x: "
        "x.reshape(<N>, -1, *x.shape[1:])[number], batch)) for number in range(<N>)))",
    ),
    reference="UvA Deep Learning Tutorials, Training Models at Scale: https://uvadlc-notebooks.readthedocs.io",
    family="accumulation",
    sets=("num_minibatches", "accumulation"),
    apply=apply,
    argument=Argument(spelling="accum<N>-loop", pattern=MINIBATCHES, example="2", parse=int),
    evidence=unrolled_accumulation_evidence,
    check_config=check_divides,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.GRADIENTS,),
)
