"""Techniques written together: `bf16+donate` is read, checked and applied from left to right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.names import unknown_name
from memprof.workloads.technique import AppliedTechnique
from memprof.workloads.train_config import TrainConfig


def parse_techniques(text: str) -> tuple[AppliedTechnique, ...]:
    """Reads techniques joined by `+`, for example `bf16+donate`.

    Args:
        text: the techniques; the empty text means none.

    Raises:
        MemprofError: for an unknown technique, an empty part, one given twice, or two that exclude each other.
    """
    if not text:
        return ()
    applied = tuple(_parse_one(part.strip(), text) for part in text.split("+"))
    _check_composition(applied)
    return applied


def apply_techniques(config: TrainConfig, techniques: Iterable[AppliedTechnique]) -> TrainConfig:
    """Returns `config` with the techniques on, applied from left to right."""
    for applied in techniques:
        config = applied.apply(config)
    return config


def _parse_one(part: str, text: str) -> AppliedTechnique:
    if not part:
        raise MemprofError(f"'{text}' has an empty technique: write names joined by one '+', for example bf16+donate.")
    for technique in registry.techniques():
        if technique.argument is None:
            if part == technique.name:
                return AppliedTechnique(technique=technique, label=part)
        elif (argument := technique.argument.find(part)) is not None:
            return AppliedTechnique(technique=technique, label=part, argument=technique.argument.parse(argument))
    raise unknown_name("technique", part, (technique.usage for technique in registry.techniques()))


def _check_composition(techniques: Sequence[AppliedTechnique]) -> None:
    decided_by: dict[str, AppliedTechnique] = {}
    seen: dict[str, AppliedTechnique] = {}
    for applied in techniques:
        name = applied.label if applied.technique.join else applied.technique.name
        if name in seen:
            raise MemprofError(f"Technique '{name}' is given twice ('{seen[name].label}' and '{applied.label}').")
        seen[name] = applied
        for field_name in applied.technique.sets:
            other = decided_by.setdefault(field_name, applied)
            if other.technique is not applied.technique:
                raise MemprofError(
                    f"Techniques '{other.label}' and '{applied.label}' both decide {field_name}: give one of them."
                )
