"""remat-mlp-attn: attention and MLP of each block are checkpointed, one by one.

Against `remat`, the residual stream between attention and MLP is kept too; in return only one of the two is ever
recomputed at a time, which lowers the peak of the backward pass.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import attention_and_mlp_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block's attention and MLP checkpointed."""
    del argument
    return dataclasses.replace(config, remat_modules="mlp,attention", remat_policy="nothing", remat_names="")


TECHNIQUE = Technique(
    name="remat-mlp-attn",
    summary="attention and MLP of each Transformer block checkpointed, each on its own",
    how_to=HowTo(
        sentence="Checkpoint the attention and the MLP of each block, each on its own.",
        code="Attention, MLP = nn.remat(Attention), nn.remat(MLP)",
    ),
    reference="UvA Deep Learning Tutorials, Training Models at Scale: https://uvadlc-notebooks.readthedocs.io",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    evidence=attention_and_mlp_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
