"""A workload: a model with its configuration record and presets. Each folder of `models/` has one as `WORKLOAD`.

Most train a model, of which they give the network and the loss (`build`); the training step around it is shared. One
that trains nothing gives its whole step (`step`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from memprof.errors import unknown_name
from memprof.workloads.train_config import TrainConfig, model_fields, technique_fields

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from memprof.capture.tracing.step import StepSpec
    from memprof.workloads.model import Model


INFERENCE = "inference"  # the phase of a workload that trains by default


class ModelConfig(Protocol):
    """What every model's configuration has: it is a dataclass of scalars, and it says how large the batch is."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def batch_size(self) -> int:
        """Number of examples in one training step."""


ConfigT = TypeVar("ConfigT", bound=ModelConfig)

# The technique-owned fields that the inference step of a model honours. `fp16` also sets the scale of a loss.
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
        name: how the user writes it; unique.
        summary: what it is, in one line.
        config_type: the frozen dataclass of its configuration. Its fields are scalars, and it checks them itself.
        presets: configurations by name.
        default_preset: the one that is taken where none is named.
        tiny_preset: the one that compiles in a second, for tests.
        honours: which of the technique-owned fields for a model (`train_config.model_fields`) this one honours; where
            nothing is trained, which technique-owned fields at all.
        build: makes the model that is trained. It imports jax when called, so that listing workloads does not.
        step: makes the step of a workload that trains nothing, for a mesh or one device; likewise.
        check: raises `MemprofError` where it cannot work, given both configurations with all techniques on.
        teaching_rows: techniques to compare where the user names none; empty means those for training.
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
        assert (self.build is None) != (self.step is None), "a workload either trains a model or has a step of its own"

    def trains(self, config: ConfigT) -> bool:
        """Whether its step is a training step."""
        return self.build is not None and getattr(config, "phase", None) != INFERENCE

    def honoured(self, config: ConfigT) -> frozenset[str]:
        """The technique-owned fields that its model, or the whole of an inference step, honours."""
        if self.build is None or self.trains(config):
            return self.honours
        # Every step honours what is not the model's.
        return _HONOURED_AT_INFERENCE & (self.honours | (technique_fields().keys() - model_fields()))

    def preset(self, name: str | None = None) -> ConfigT:
        """Returns a preset, the default one for None; raises `MemprofError` where there is none of that name."""
        name = self.default_preset if name is None else name
        if name not in self.presets:
            raise unknown_name(f"preset of {self.name}", name, self.presets)
        return self.presets[name]


def without_dropout(config: ConfigT) -> ConfigT:
    """A configuration whose dropout rates are 0."""
    rates = [name for name in config.__dataclass_fields__ if name.endswith("dropout_rate")]
    return replace(config, **dict.fromkeys(rates, 0.0))
