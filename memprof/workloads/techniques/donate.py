"""donate: the new state takes over the buffers of the old one.

Without donation XLA must keep the old parameters and optimizer state intact while it writes the new ones, so that both
exist when the step ends. A donated state cannot be used after the call.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.memory import donation_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with the state donated."""
    del argument
    return dataclasses.replace(config, donate=True)


TECHNIQUE = Technique(
    name="donate",
    summary="the new state reuses the buffers of the old one (donate_argnums)",
    how_to=HowTo(
        sentence="Donate the training state, so that the new one takes the place of the old one.",
        code="step = jax.jit(train_step, donate_argnums=(0,))",
    ),
    reference="JAX documentation, Buffer donation: https://docs.jax.dev/en/latest/buffer_donation.html",
    family="structure",
    sets=("donate",),
    apply=apply,
    evidence=donation_evidence,
    shrinks=(Category.OUTPUTS,),
    tolerance=0.0,
)
