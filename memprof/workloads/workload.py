"""A workload: a model with its configuration record and presets. Each folder of `models/` defines one as `WORKLOAD`.

Most workloads train a model: they provide the network and the loss (`build`), and share the training step around it. A
workload that does not train provides its whole step (`step`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from memprof.errors import unknown_name
from memprof.workloads.train_config import TrainConfig, model_fields, technique_fields

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.workloads.model import Model


INFERENCE = "inference"  # the phase of a training workload that runs inference


class ModelConfig(Protocol):
    """A model's configuration: a dataclass of scalars with a batch size."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def batch_size(self) -> int:
        """Number of examples in one training step."""


ConfigT = TypeVar("ConfigT", bound=ModelConfig)

# The technique-owned fields that a model's inference step honours. `fp16` also sets the scale of a loss.
_HONOURED_AT_INFERENCE = frozenset(
    {
        *("compute_dtype", "param_dtype", "weight_dtype", "loss_scaling", "scan_layers", "attention_kernel"),
        *("structurally_pruned_fraction", "compiler_options"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[ConfigT]):
    """One workload.

    Attributes:
        name: its name on the command line; unique.
        summary: what it is, in one line.
        config_type: the frozen dataclass of its configuration. Its fields are scalars, and it checks them itself.
        presets: configurations by name.
        default_preset: the preset to use if the user names none.
        tiny_preset: a preset that compiles in a second, for tests.
        honours: the technique-owned model fields (`train_config.model_fields`) that it honours. For a workload that
            does
            not train: all technique-owned fields that it honours.
        build: makes the model to train. It imports jax when called, so that listing workloads does not.
        step: makes the step of a workload that does not train, for a mesh or one device. It also imports jax when
            called.
        check: raises `MemprofError` if it cannot work, given both configurations with all techniques on.
        teaching_rows: techniques to compare if the user names none; empty means those for training.
    """

    name: str
    summary: str
    config_type: type[ConfigT]
    presets: Mapping[str, ConfigT]
    default_preset: str
    tiny_preset: str = "tiny"
    honours: frozenset[str]
    build: Callable[[ConfigT, TrainConfig], Model] | None = None
    step: Callable[[ConfigT, TrainConfig, Mesh | None], StepSpec] | None = None
    check: Callable[[ConfigT, TrainConfig], None] | None = None
    teaching_rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert (self.build is None) != (self.step is None), "a workload either trains a model or has its own step"

    def trains(self, config: ConfigT) -> bool:
        """Whether its step is a training step."""
        return self.build is not None and getattr(config, "phase", None) != INFERENCE

    def honoured(self, config: ConfigT) -> frozenset[str]:
        """The technique-owned fields that its model, or its whole inference step, honours."""
        if self.build is None or self.trains(config):
            return self.honours
        # Every step honours the fields that are not for the model.
        return _HONOURED_AT_INFERENCE & (self.honours | (technique_fields().keys() - model_fields()))

    def preset(self, name: str | None = None) -> ConfigT:
        """Return a preset, or the default one for None; raise `MemprofError` if there is none of that name."""
        name = self.default_preset if name is None else name
        if name not in self.presets:
            raise unknown_name(f"preset of {self.name}", name, self.presets)
        return self.presets[name]


def without_dropout(config: ConfigT) -> ConfigT:
    """Return the configuration with dropout rates of 0."""
    rates = [name for name in config.__dataclass_fields__ if name.endswith("dropout_rate")]
    return replace(config, **dict.fromkeys(rates, 0.0))
