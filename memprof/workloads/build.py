"""Build a step from names: the command line's choices become a `Plan`, and the plan becomes a `StepSpec`.

    plan(workload="transformer", preset="tiny", techniques=["bf16+donate"]).build()

`plan` reports every wrong name and value before jax is imported. A child process builds the step; it receives the plan
as a `BuiltInStep`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from memprof.sources.jax.targets.resolve import AskedTarget
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads import registry
from memprof.workloads.composition import (
    applied_techniques,
    apply_techniques,
    check_applicable,
    check_target,
    parse_techniques,
)
from memprof.workloads.optimizers.catalogue import Optimizer
from memprof.workloads.overrides import apply_overrides
from memprof.workloads.technique import AppliedTechnique, ChosenTechnique
from memprof.workloads.train_config import TrainConfig, inference_fields
from memprof.workloads.workload import Workload, without_dropout

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from memprof.workloads.train_step import Trainer

ConfigValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A workload with all its choices made and checked, before jax is imported.

    Attributes:
        preset: the name of the preset that the configuration started from.
        config: the model's configuration, overrides applied.
        train_config: the training configuration, overrides and techniques applied.
        techniques: the techniques in the order given.
    """

    workload: Workload[Any]
    preset: str
    config: Any
    train_config: TrainConfig
    optimizer: Optimizer
    techniques: tuple[AppliedTechnique, ...]

    def flat_config(self) -> dict[str, ConfigValue]:
        """Return all choices as one flat dictionary, for reports and the capture."""
        model_fields, train_fields = dataclasses.asdict(self.config), dataclasses.asdict(self.train_config)
        assert not model_fields.keys() & train_fields.keys(), "a field of the model hides one of the training"
        if self.workload.trains(self.config):
            chosen = train_fields.keys() - inference_fields()
        else:
            chosen = train_fields.keys() & {*self.workload.honoured(self.config), "seed"}
        return {
            "preset": self.preset,
            **model_fields,
            **{name: train_fields[name] for name in train_fields if name in chosen},
        }

    def build(self, mesh: Mesh | None = None) -> StepSpec:
        """Return the step, with abstract arguments for a mesh or for one device."""
        if self.workload.step is not None:
            spec = self.workload.step(self.config, self.train_config, mesh)
        else:
            spec = self._training_step(mesh) if self.workload.trains(self.config) else self._inference_step()
        return dataclasses.replace(
            spec,
            workload=self.workload.name,
            techniques=tuple(applied.label for applied in self.techniques),
            config=self.flat_config(),
            compiler_options=self.train_config.compiler_option_values(),
            check_target=functools.partial(check_target, self.techniques),
        )

    def _training_step(self, mesh: Mesh | None) -> StepSpec:
        num_examples, seq_len = self.config.batch_size, self.flat_config().get("seq_len")
        num_tokens = num_examples * seq_len if isinstance(seq_len, int) else None
        return build_trainer(self, mesh).spec(num_examples=num_examples, num_tokens=num_tokens)

    def _inference_step(self) -> StepSpec:
        from memprof.workloads.inference import inference_step

        assert self.workload.build is not None
        model = self.workload.build(self.config, self.train_config)
        return inference_step(model, seed=self.train_config.seed, weight_dtype=self.train_config.weight_dtype)

    @property
    def recipe(self) -> BuiltInStep:
        """Return this plan in a form that can be sent to another process."""
        return BuiltInStep(
            workload=self.workload.name,
            preset=self.preset,
            config=dataclasses.asdict(self.config),
            train_config=self.train_config,
            techniques=tuple(applied.chosen for applied in self.techniques),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInStep:
    """A plan in the form that is sent to another process: names, and the choices made."""

    imports: ClassVar[tuple[str, ...]] = ("memprof.workloads.build", "memprof.workloads.train_step")

    workload: str
    preset: str
    config: dict[str, ConfigValue]
    train_config: TrainConfig
    techniques: tuple[ChosenTechnique, ...]

    def plan(self) -> Plan:
        """Return the original plan."""
        found = registry.workload(self.workload)
        return Plan(
            workload=found,
            preset=self.preset,
            config=found.config_type(**self.config),
            train_config=self.train_config,
            optimizer=registry.optimizer(self.train_config.optimizer),
            techniques=applied_techniques(self.techniques),
        )

    def build(self, target: AskedTarget = None) -> StepSpec:
        """Return the training step, on the target's mesh if it has one."""
        from memprof.sources.jax.targets.mesh import mesh_of

        return self.plan().build(mesh_of(target))


def plan(
    *,
    workload: str,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    techniques: Sequence[str] = (),
    axes: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """Make and check all choices.

    Args:
        workload: name of a built-in workload.
        preset: name of one of its presets; None means its default.
        overrides: `field=value` texts, as given to `--set`.
        techniques: labels of techniques. Each text holds one or several, joined by `+`.
        axes: axes of the mesh that the step is for; empty for one device.

    Raises:
        MemprofError: for an unknown name or a bad value, in one sentence that says what is allowed.
    """
    found = registry.workload(workload)
    config, train_config = apply_overrides(
        overrides, found.preset(preset), TrainConfig(), trains=found.build is not None
    )
    trains = found.trains(config)
    if not trains:
        config, train_config = apply_overrides(
            overrides, without_dropout(found.preset(preset)), TrainConfig(), trains=False
        )
    applied = parse_techniques(*techniques)
    train_config = apply_techniques(train_config, applied)
    check_applicable(
        applied,
        name=found.name,
        honours=found.honoured(config),
        trains=trains,
        config=config,
        train_config=train_config,
        axes=axes,
    )
    if found.check is not None:
        found.check(config, train_config)
    return Plan(
        workload=found,
        preset=found.default_preset if preset is None else preset,
        config=config,
        train_config=train_config,
        optimizer=registry.optimizer(train_config.optimizer),
        techniques=applied,
    )


def build_trainer(choices: Plan, mesh: Mesh | None = None) -> Trainer:
    """Return the trainer. It makes both the abstract arguments of the step and real ones to run it."""
    from memprof.workloads.train_step import Trainer

    assert choices.workload.build is not None, "a workload without training has no trainer"
    return Trainer(
        model=choices.workload.build(choices.config, choices.train_config),
        optimizer=choices.optimizer.create(choices.train_config),
        config=choices.train_config,
        mesh=mesh,
    )


def build_step(
    *,
    workload: str,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    techniques: Sequence[str] = (),
    mesh: Mesh | None = None,
) -> StepSpec:
    """Return the training step of a built-in workload, with abstract arguments. See `plan` for the arguments."""
    axes = {} if mesh is None else dict(mesh.shape)
    choices = plan(workload=workload, preset=preset, overrides=overrides, techniques=techniques, axes=axes)
    return choices.build(mesh)
