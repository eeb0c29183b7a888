"""no-donate: the old state stays intact beside the new one, said aloud.

It is what `jax.jit` does unless it is told otherwise, and what many training scripts do without knowing.
"""

from __future__ import annotations

import dataclasses

from memprof.workloads.evidence.memory import no_donation_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with nothing donated."""
    del argument
    return dataclasses.replace(config, donate=False)


TECHNIQUE = Technique(
    name="no-donate",
    summary="old and new state beside each other, as in the baseline",
    how_to=HowTo(
        sentence="Donate nothing, which is what JAX does unasked.",
        code="step = jax.jit(train_step)",
    ),
    reference="JAX documentation, Buffer donation: https://docs.jax.dev/en/latest/buffer_donation.html",
    family="structure",
    sets=("donate",),
    apply=apply,
    evidence=no_donation_evidence,
    restates_baseline=True,
    tolerance=0.0,
)
