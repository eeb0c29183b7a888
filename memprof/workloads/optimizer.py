"""An optimizer by name: ours are found in `optimizers/`, those of optax in `optax_optimizers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memprof.workloads.optimizer_state import StateOfParams
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer.

    Attributes:
        name: how the user writes it, after `opt=`; unique.
        keeps: what it keeps for each parameter, in a few words.
        state_cost: bytes of state for each float32 parameter, in words: `8`, `2.03`, `4 + 4/rows + 4/columns`.
        reference: where it is described.
        decays_weights: whether `weight_decay` of the configuration applies. Where it does not, it is of no effect.
        state: declares the leaves of the state for the leaves of the parameters, exactly.
        create: makes it with the learning rate and weight decay of the configuration. It imports optax when called,
            so that listing optimizers imports no jax.
        code: the expression that makes it, with a `learning_rate` and, where it decays weights, a `weight_decay`.
    """

    name: str
    keeps: str
    state_cost: str
    reference: str
    decays_weights: bool
    state: StateOfParams
    create: Callable[[TrainConfig], optax.GradientTransformation]
    code: str

    @property
    def summary(self) -> str:
        """What it costs and does, in one line."""
        decay = "decays weights" if self.decays_weights else "no weight decay"
        return f"{self.state_cost} bytes a float32 parameter: {self.keeps}; {decay}"
