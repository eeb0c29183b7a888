"""An optimizer by name: ours are found in `optimizers/`, those of optax in `optax_optimizers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer.

    Attributes:
        name: how the user writes it.
        summary: what it keeps for each parameter, in one line.
        create: makes it with the learning rate and weight decay of the configuration. It imports optax when called,
            so that listing optimizers imports no jax.
    """

    name: str
    summary: str
    create: Callable[[TrainConfig], optax.GradientTransformation]
