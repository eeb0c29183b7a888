"""remat-act: only the activation function of each MLP is checkpointed.

The smallest example of `jax.checkpoint` on a function: the value before the activation function is kept, and what its
derivative needs is computed from it, instead of being kept beside it. It costs no matrix product. In unrolled layers
XLA does the same unasked, since it repeats cheap operations inside fusions of the backward pass; in a loop over layers
it keeps whatever JAX saves, and there the technique shows.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.remat import activation_function_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with the activation function of each MLP checkpointed."""
    del argument
    return dataclasses.replace(config, remat_activation=True)


TECHNIQUE = Technique(
    name="remat-act",
    summary="only the activation function of each MLP checkpointed",
    how_to=HowTo(
        sentence="Checkpoint the activation function.",
        code="activation = jax.checkpoint(nn.gelu)",
    ),
    reference="JAX documentation, Gradient checkpointing: https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    family="checkpointing",
    sets=("remat_activation",),
    apply=apply,
    evidence=activation_function_evidence,
    shows_with=("scan",),
    shrinks=(Category.ACTIVATIONS,),
)
