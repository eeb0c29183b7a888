"""A workload: a model with its configuration record and presets. Each folder of `models/` has one as `WORKLOAD`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from memprof.errors import unknown_name
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    from memprof.workloads.model import Model


class ModelConfig(Protocol):
    """What every model's configuration has: it is a dataclass of scalars, and it says how large the batch is."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def batch_size(self) -> int:
        """Number of examples in one training step."""


ConfigT = TypeVar("ConfigT", bound=ModelConfig)


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
        honours: which of the technique-owned fields for a model (`train_config.model_fields`) this one honours.
        build: makes the model. It imports jax when called, so that listing workloads does not.
    """

    name: str
    summary: str
    config_type: type[ConfigT]
    presets: Mapping[str, ConfigT]
    default_preset: str
    tiny_preset: str = "tiny"
    honours: frozenset[str]
    build: Callable[[ConfigT, TrainConfig], Model]

    def preset(self, name: str | None = None) -> ConfigT:
        """Returns a preset, the default one for None; raises `MemprofError` where there is none of that name."""
        name = self.default_preset if name is None else name
        if name not in self.presets:
            raise unknown_name(f"preset of {self.name}", name, self.presets)
        return self.presets[name]
