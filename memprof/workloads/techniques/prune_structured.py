"""prune-structured=<RATIO>: that part of the attention heads and of the MLPs' hidden units is gone.

Whole heads and units, those with the smallest weights, are cut out, and what is left is a smaller dense model: fewer
parameters, less optimizer state, smaller activations. The residual stream keeps its width.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.pruning import fewer_params_evidence
from memprof.workloads.fractions import FRACTION, parse_fraction
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with that part of the heads and hidden units gone."""
    assert isinstance(argument, float)
    return dataclasses.replace(config, structurally_pruned_fraction=argument)


TECHNIQUE = Technique(
    name="prune-structured",
    summary="whole attention heads and hidden units cut out: a smaller dense model",
    how_to=HowTo(
        sentence="Make the model with that fraction of the attention heads and hidden units cut out.",
        code="model = Model(num_heads=round(num_heads * (1 - <RATIO>)), mlp_size=round(mlp_size * (1 - <RATIO>)))",
    ),
    reference="Michel et al. 2019, Are Sixteen Heads Really Better than One?, arXiv:1905.10650",
    family="pruning",
    sets=("structurally_pruned_fraction",),
    apply=apply,
    argument=Argument(spelling="prune-structured=<RATIO>", pattern=FRACTION, example="0.5", parse=parse_fraction),
    evidence=fewer_params_evidence,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS),
    tolerance=None,
)
