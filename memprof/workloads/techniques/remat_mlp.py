"""remat-mlp: the MLP of each block is checkpointed.

The MLP's hidden units are four times as wide as the residual stream, in several versions (before and after the
activation function, and what its derivative needs). They are computed again; attention keeps what it has.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import mlp_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block's MLP checkpointed."""
    del argument
    return dataclasses.replace(config, remat_modules="mlp", remat_policy="nothing", remat_names="")


TECHNIQUE = Technique(
    name="remat-mlp",
    summary="the MLP of each Transformer block checkpointed",
    how_to=HowTo(
        sentence="Checkpoint the MLP of each block; outside Flax, `jax.checkpoint` does the same around a function.",
        code="MLP = nn.remat(MLP)",
    ),
    reference="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    evidence=mlp_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
