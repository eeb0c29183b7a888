"""What both kinds of gradient accumulation check."""

from __future__ import annotations

from typing import Any, Final

from memprof.workloads.checks import require
from memprof.workloads.train_config import TrainConfig

MINIBATCHES: Final = "[1-9][0-9]*"


def check_divides(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` unless the batch can be split into minibatches of equal size."""
    batch_size, num_minibatches = config.batch_size, train_config.num_minibatches
    require(
        batch_size % num_minibatches == 0,
        f"batch_size is {batch_size}, but it must be a multiple of the {num_minibatches} minibatches: change either.",
    )
