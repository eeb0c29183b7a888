"""Whether techniques can work where they are asked for: with this workload, these sizes, this target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memprof.analysis.capture import TargetInfo
from memprof.errors import MemprofError
from memprof.workloads.technique import AppliedTechnique
from memprof.workloads.train_config import TrainConfig, model_fields


def check_applicable(
    techniques: Sequence[AppliedTechnique],
    *,
    name: str,
    honours: frozenset[str],
    config: Any,
    train_config: TrainConfig,
) -> None:
    """Raises `MemprofError`, one sentence, unless each technique can work.

    Args:
        techniques: those applied.
        name: of the workload.
        honours: the technique-owned fields for a model that the workload honours.
        config: the model's configuration.
        train_config: the training configuration with all techniques on.
    """
    baseline = TrainConfig()
    for applied in techniques:
        alone = applied.apply(baseline)
        changed = {name for name in applied.technique.sets if getattr(alone, name) != getattr(baseline, name)}
        if changed & model_fields() - honours:
            raise MemprofError(f"Technique '{applied.label}' does not apply to {name}: leave it out.")
        if applied.technique.check_config is not None:
            applied.technique.check_config(config, train_config)


def check_target(techniques: Sequence[AppliedTechnique], target: TargetInfo) -> None:
    """Raises `MemprofError`, one sentence, unless each technique can be compiled for that target."""
    for applied in techniques:
        if applied.technique.check_target is not None:
            applied.technique.check_target(target)
