"""remat-offload: each block is checkpointed, and what is worth keeping goes to host memory.

The results of the projections and the residual stream (see `residuals.py`) are copied to pinned host memory in the
forward pass and back in the backward pass; the rest is computed again. What it saves in device memory it takes from the
host, and it pays in traffic between the two instead of operations.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import offloaded_residuals_evidence
from memprof.workloads.host_memory import check_has_host_memory
from memprof.workloads.residuals import RESIDUALS
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block checkpointed and its residuals in host memory."""
    del argument
    names = ",".join(RESIDUALS)
    return dataclasses.replace(config, remat_modules="block", remat_policy="offload", remat_names=names)


TECHNIQUE = Technique(
    name="remat-offload",
    summary="each Transformer block checkpointed, with what is worth keeping in host memory (pinned_host)",
    how_to=HowTo(
        sentence="Name the values that are worth keeping with `jax.ad_checkpoint.checkpoint_name`, and checkpoint "
        "each block with a policy that moves them to host memory.",
        code="Block = nn.remat(Block, "
        "policy=jax.checkpoint_policies.save_and_offload_only_these_names(names_which_can_be_saved=(), "
        'names_which_can_be_offloaded=names, offload_src="device", offload_dst="pinned_host"))',
    ),
    reference="JAX documentation, Host offloading: https://docs.jax.dev/en/latest/notebooks/host-offloading.html",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    evidence=offloaded_residuals_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
    check_target=check_has_host_memory,
)
