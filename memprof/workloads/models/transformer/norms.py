"""The norm that a configuration selects."""

from __future__ import annotations

import flax.linen as nn

from memprof.workloads.layers import layer_norm, rms_norm
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.train_config import TrainConfig


def norm(config: TransformerConfig, train_config: TrainConfig, name: str | None = None) -> nn.Module:
    """Return a LayerNorm or an RMSNorm."""
    return (rms_norm if config.norm == "rms" else layer_norm)(train_config, name)
