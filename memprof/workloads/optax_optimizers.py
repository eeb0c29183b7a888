"""The optimizers that optax provides, under the names that its users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.workloads.optimizer import Optimizer
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax


def _adamw(config: TrainConfig) -> optax.GradientTransformation:
    import optax

    return optax.adamw(config.learning_rate, weight_decay=config.weight_decay)


def _adam(config: TrainConfig) -> optax.GradientTransformation:
    import optax

    return optax.adam(config.learning_rate)


def _sgd(config: TrainConfig) -> optax.GradientTransformation:
    import optax

    return optax.sgd(config.learning_rate)


OPTAX_OPTIMIZERS = (
    Optimizer(name="adamw", summary="two moments (8 bytes a float32 parameter), decoupled weight decay", create=_adamw),
    Optimizer(name="adam", summary="two moments (8 bytes a float32 parameter)", create=_adam),
    Optimizer(name="sgd", summary="no state", create=_sgd),
)
