"""accum<N>: the batch in N minibatches, one after another in a loop; their gradients are added up.

Only one minibatch's activations exist at a time. The accumulator is one float32 number a parameter, held beside the
gradients of the minibatch at hand. The gradients are those of the whole batch, however the padding is spread (see
`accumulation.py`).
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.loops import accumulation_loop_evidence
from memprof.workloads.minibatches import MINIBATCHES, check_divides
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with so many minibatches, gone through by a loop."""
    assert isinstance(argument, int)
    return dataclasses.replace(config, num_minibatches=argument, accumulation="scan")


TECHNIQUE = Technique(
    name="accum",
    summary="gradients of N minibatches added up by a loop (lax.scan); the batch must be a multiple of N",
    how_to=HowTo(
        sentence="Add up the gradients of the batch's <N> parts in a loop, from `zeros` like the parameters, and "
        "divide the sum by <N>.",
        code="grads, _ = jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, "
        "part)), None), zeros, jax.tree.map(lambda x: x.reshape(<N>, -1, *x.shape[1:]), batch))",
    ),
    reference="UvA Deep Learning Tutorials, Training Models at Scale: https://uvadlc-notebooks.readthedocs.io",
    family="accumulation",
    sets=("num_minibatches", "accumulation"),
    apply=apply,
    argument=Argument(spelling="accum<N>", pattern=MINIBATCHES, example="2", parse=int),
    evidence=accumulation_loop_evidence,
    check_config=check_divides,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.GRADIENTS,),
)
