"""mlp: a two-layer classifier, the smallest model that shows every category of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.workloads.models.mlp.config import MLPConfig
from memprof.workloads.train_config import TrainConfig
from memprof.workloads.workload import Workload

if TYPE_CHECKING:
    from memprof.workloads.model import Model


def build(config: MLPConfig, train_config: TrainConfig) -> Model:
    """Return the model. jax is imported here, not above, so that listing workloads stays quick."""
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
    honours=frozenset(
        {"compute_dtype", "param_dtype", "remat_activation", "structurally_pruned_fraction", "tensor_parallel"}
    ),
    build=build,
)
