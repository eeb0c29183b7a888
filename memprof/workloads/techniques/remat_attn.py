"""remat-attn: the attention of each block is checkpointed.

Its probabilities grow with the square of the length and are the largest activation of long sequences. They are computed
again; the MLP keeps what it has.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import attention_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block's attention checkpointed."""
    del argument
    return dataclasses.replace(config, remat_modules="attention", remat_policy="nothing", remat_names="")


TECHNIQUE = Technique(
    name="remat-attn",
    summary="the attention of each Transformer block checkpointed",
    how_to=HowTo(
        sentence="Checkpoint the attention of each block; outside Flax, `jax.checkpoint` does the same around a "
        "function.",
        code="Attention = nn.remat(Attention)",
    ),
    reference="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    evidence=attention_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
