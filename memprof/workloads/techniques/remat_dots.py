"""remat-dots: each block is checkpointed, but keeps the results of its projections.

The policy is `dots_with_no_batch_dims_saveable`: matrix products with weights are kept, since they cost the most to
compute again; the products of attention (which have batch dimensions) are not, since their results grow with the square
of the length. `dots_saveable` would keep those too, and with them the memory that checkpointing is to save.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import partly_kept_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block checkpointed, its projections' results kept."""
    del argument
    return dataclasses.replace(config, remat_modules="block", remat_policy="products", remat_names="")


TECHNIQUE = Technique(
    name="remat-dots",
    summary="each Transformer block checkpointed, with the results of its projections kept",
    how_to=HowTo(
        sentence="Checkpoint each block, or the loss, with a policy that keeps the products with weights.",
        code="Block = nn.remat(Block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)",
    ),
    reference="JAX documentation, Gradient checkpointing: https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    evidence=partly_kept_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
