"""remat-names=<A,B>: each block is checkpointed, but keeps the values of these names.

The values worth keeping are those that are small for what it costs to compute them again: `attention_out`, say, saves
all of attention from being computed again before the MLP is. The names are in `residuals.py`; JAX marks the values with
`checkpoint_name`.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import partly_kept_evidence
from memprof.workloads.names import unknown_name
from memprof.workloads.residuals import RESIDUALS
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with each block checkpointed and the named values kept."""
    assert isinstance(argument, str)
    return dataclasses.replace(config, remat_modules="block", remat_policy="names", remat_names=argument)


def parse_names(text: str) -> str:
    """Returns the names, joined by commas; raises `MemprofError` for one that does not exist."""
    for name in text.split(","):
        if name not in RESIDUALS:
            raise unknown_name("residual", name, RESIDUALS)
    return text


TECHNIQUE = Technique(
    name="remat-names",
    summary="each Transformer block checkpointed, with the named values kept",
    how_to=HowTo(
        sentence="Name the values that are worth keeping with `jax.ad_checkpoint.checkpoint_name`, and checkpoint "
        "each block with a policy that keeps them.",
        code="Block = nn.remat(Block, policy=jax.checkpoint_policies.save_only_these_names(<A,B>))",
        argument_code=lambda names: ", ".join(f'"{name}"' for name in str(names).split(",")),
    ),
    reference="JAX documentation, Gradient checkpointing: https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    family="checkpointing",
    sets=("remat_modules", "remat_policy", "remat_names"),
    apply=apply,
    argument=Argument(spelling="remat-names=<A,B>", pattern="[^+]+", example="qkv,attention_out", parse=parse_names),
    evidence=partly_kept_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
