"""Baseline: float32 and nothing else, so that every other row has something to be measured against."""

from __future__ import annotations

import dataclasses

from memprof.workloads.technique import ArgumentValue, Technique
from memprof.workloads.train_config import TrainConfig, technique_fields


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with every technique off."""
    del argument
    return dataclasses.replace(config, **technique_fields())


TECHNIQUE = Technique(
    name="baseline",
    summary="float32 throughout, and no other technique",
    reference="none: this is what JAX does when nothing is asked of it",
    family="baseline",
    # It decides all of them, hence it goes with none of the others.
    sets=tuple(technique_fields()),
    apply=apply,
)
