"""Combine techniques: parse them, check them, apply them, and look for their effects in the compiled program.

    techniques = parse_techniques("bf16+remat")
    config = apply_techniques(TrainConfig(), techniques)
    for verdict in verdicts(report, techniques, reference=baseline_report):
        print(verdict.took_effect, verdict.evidence)

No other module parses the text of techniques.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import Target
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError, unknown_name
from memprof.workloads import registry
from memprof.workloads.mesh_axes import check_axis
from memprof.workloads.technique import AppliedTechnique, ChosenTechnique, Observation
from memprof.workloads.train_config import TrainConfig, inference_fields, model_fields

# Techniques for engines only: products with 8-bit integer weights, and dimensions that vary up to their size.
INT8 = "int8-qdq"
VARYING = {"dynamic-batch": ("batch_size",), "dynamic-length": ("seq_len", "context_len")}
ENGINE_TECHNIQUES = (INT8, *VARYING)


def parse_techniques(*texts: str) -> tuple[AppliedTechnique, ...]:
    """Parse techniques.

    Args:
        texts: one or several techniques each, joined by `+`: `bf16+donate`. Empty texts are skipped.

    Raises:
        MemprofError: for an unknown technique, an empty part, a repeated technique, or two that exclude each other.
    """
    text = "+".join(texts)
    if not text:
        return ()
    applied = tuple(_parse_one(part.strip(), text) for part in text.split("+"))
    _check_composition(applied)
    return applied


def applied_techniques(chosen: Iterable[ChosenTechnique]) -> tuple[AppliedTechnique, ...]:
    """Return the techniques that another process has parsed and checked."""
    return tuple(
        AppliedTechnique(technique=registry.technique(each.name), label=each.label, argument=each.argument)
        for each in chosen
    )


def apply_techniques(config: TrainConfig, techniques: Iterable[AppliedTechnique]) -> TrainConfig:
    """Return `config` with the techniques on, applied from left to right."""
    for applied in techniques:
        config = applied.apply(config)
    return config


def check_applicable(
    techniques: Sequence[AppliedTechnique],
    *,
    name: str,
    honours: frozenset[str],
    trains: bool = True,
    config: Any,
    train_config: TrainConfig,
    axes: Mapping[str, int],
) -> None:
    """Raise `MemprofError` with one sentence unless each technique can work.

    Args:
        techniques: the applied techniques.
        name: name of the workload.
        honours: the technique-owned model fields that the workload honours.
        trains: whether its step is the training step, which honours the other technique-owned fields.
        config: the model's configuration.
        train_config: the training configuration with all techniques on.
        axes: axes of the mesh; empty for one device.
    """
    baseline = TrainConfig()
    for applied in techniques:
        alone = applied.apply(baseline)
        changed = {name for name in applied.technique.sets if getattr(alone, name) != getattr(baseline, name)}
        of_model = model_fields() | inference_fields() if trains else changed
        if changed & of_model - honours:
            raise MemprofError(f"Technique '{applied.label}' does not apply to {name}; leave it out.")
        if applied.technique.check_config is not None:
            applied.technique.check_config(config, train_config)
        check_axis(applied, axes)
        if applied.technique.check_axes is not None:
            applied.technique.check_axes(config, train_config, axes)


def check_target(techniques: Sequence[AppliedTechnique], target: Target) -> None:
    """Raise `MemprofError` with one sentence unless each technique can be compiled for the target."""
    for applied in techniques:
        if applied.technique.check_target is not None:
            applied.technique.check_target(target)


def verdicts(report: Report, techniques: Sequence[AppliedTechnique], reference: Report | None) -> tuple[Verdict, ...]:
    """Return whether each technique took effect. The baseline has no verdict, because it has no effect to look for.

    A configuration shows what was requested. The evidence comes from the report, and so from the compiled program. Some
    effects only show in comparison with a program without the technique; the reference serves for these.

    Args:
        report: report of the program with the techniques.
        techniques: the requested techniques.
        reference: report of the row to compare with. A technique is only compared with it if the two rows differ in
            that technique and in others that the reference lacks. A difference from any other row would prove nothing.
    """
    found = []
    for applied in techniques:
        look = applied.technique.evidence
        if look is not None:
            contrast = reference if reference is not None and _is_contrast(reference, applied, techniques) else None
            verdict = look(Observation(report, applied.argument, contrast))
            found.append(Verdict(took_effect=verdict.took_effect, evidence=f"{applied.label}: {verdict.evidence}"))
    return tuple(found)


def _parse_one(part: str, text: str) -> AppliedTechnique:
    if not part:
        raise MemprofError(f"'{text}' has an empty technique: write names joined by one '+', for example bf16+donate.")
    for technique in registry.techniques():
        if technique.argument is None:
            if part == technique.name:
                return AppliedTechnique(technique=technique, label=part)
        elif (argument := technique.argument.find(part)) is not None:
            return AppliedTechnique(technique=technique, label=part, argument=technique.argument.parse(argument))
    if part in ENGINE_TECHNIQUES:
        raise MemprofError(f"Technique '{part}' is for inference engines: add --engine tensorrt, or leave it out.")
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
                    f"Techniques '{other.label}' and '{applied.label}' both set {field_name}: give only one of them."
                )


def _is_contrast(reference: Report, applied: AppliedTechnique, techniques: Sequence[AppliedTechnique]) -> bool:
    """Whether the reference has only techniques that the row has too, and lacks this one."""
    try:
        theirs = parse_techniques(*reference.techniques)
    except MemprofError:
        return False  # a capture of another memprof version, with other techniques
    says_something = {
        other.label for other in theirs if other.technique.evidence and not other.technique.restates_baseline
    }
    return says_something <= {other.label for other in techniques} - {applied.label}
