"""prune=<RATIO>: that part of each weight matrix, the smallest weights, is masked to zero.

It saves nothing while training. The zeros are stored like other numbers, gradients and optimizer state are as large as
before, the masks take a byte for each weight, and the masked copies of the weights are kept for the backward pass. Only
kernels for sparse matrices would gain from the zeros, and XLA has none. The row is here to show that.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.pruning import masks_evidence
from memprof.workloads.fractions import FRACTION, parse_fraction
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with that part of the weights masked."""
    assert isinstance(argument, float)
    return dataclasses.replace(config, pruned_fraction=argument)


TECHNIQUE = Technique(
    name="prune",
    summary="the smallest weights masked to zero; saves nothing, and the masks cost a byte a weight",
    how_to=HowTo(
        sentence="Set the smallest weights to zero by boolean masks that are kept beside the parameters.",
        code="params = jax.tree.map(lambda x: x * (jnp.abs(x) >= jnp.quantile(jnp.abs(x), <RATIO>)), params)",
    ),
    reference="Han et al. 2015, Learning both Weights and Connections for Efficient Neural Networks, arXiv:1506.02626",
    family="pruning",
    sets=("pruned_fraction",),
    apply=apply,
    argument=Argument(spelling="prune=<RATIO>", pattern=FRACTION, example="0.5", parse=parse_fraction),
    evidence=masks_evidence,
    grows=(Category.OTHER_STATE,),
    tolerance=None,
)
