"""mlp: a two-layer classifier, the smallest model that shows every category of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memprof.workloads.checks import require_positive, require_rates
from memprof.workloads.train_config import TrainConfig
from memprof.workloads.workload import Workload

if TYPE_CHECKING:
    from memprof.workloads.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """Sizes of the classifier.

    Attributes:
        batch_size: number of examples in a step.
        input_size: number of features of an example.
        hidden_size: width of the hidden layer.
        num_classes: number of classes.
        dropout_rate: of the hidden layer.
    """

    batch_size: int
    input_size: int
    hidden_size: int
    num_classes: int
    dropout_rate: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "input_size", "hidden_size", "num_classes")
        require_rates(self, "dropout_rate")


def build(config: MLPConfig, train_config: TrainConfig) -> Model:
    """Returns the model. jax is imported here, not above, so that listing workloads stays quick."""
    from memprof.workloads.models.mlp.network import build_mlp

    return build_mlp(config, train_config)


WORKLOAD = Workload(
    name="mlp",
    summary="two-layer classifier: Dense, LayerNorm, silu, Dropout, Dense",
    config_type=MLPConfig,
    presets={
        "tiny": MLPConfig(batch_size=16, input_size=12, hidden_size=32, num_classes=4),
        "base": MLPConfig(batch_size=512, input_size=1024, hidden_size=4096, num_classes=1000),
    },
    default_preset="base",
    honours=frozenset({"compute_dtype", "param_dtype", "remat_activation", "structurally_pruned_fraction"}),
    build=build,
)
