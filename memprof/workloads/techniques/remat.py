"""remat: each block is checkpointed.

Only the residual stream between the blocks is kept (batch x length x hidden size for each); everything inside a block
is computed again when the backward pass comes to it. The price is one more forward pass through the blocks, about a
third more operations.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import attention_and_mlp_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block checkpointed."""
    del argument
    return dataclasses.replace(config, remat_modules="block", remat_policy="nothing", remat_names="")


TECHNIQUE = Technique(
    name="remat",
    summary="each Transformer block checkpointed: its inside is computed again in the backward pass",
    how_to=HowTo(
        sentence="Checkpoint each block; outside Flax, `jax.checkpoint` does the same around a function.",
        code="Block = nn.remat(Block)",
    ),
    reference="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    evidence=attention_and_mlp_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
