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
        own_code: the expression that makes it, where that is not optax's function of its name.
    """

    name: str
    keeps: str
    state_cost: str
    reference: str
    decays_weights: bool
    state: StateOfParams
    create: Callable[[TrainConfig], optax.GradientTransformation]
    own_code: str = ""

    @property
    def code(self) -> str:
        """The expression that makes it, with a `learning_rate` and, where it decays weights, a `weight_decay`."""
        return self.own_code or f"optax.{self.name}(learning_rate{', weight_decay=weight_decay' * self.decays_weights})"

    @property
    def summary(self) -> str:
        """What it costs and does, in one line."""
        decay = "decays weights" if self.decays_weights else "no weight decay"
        return f"{self.state_cost} bytes a float32 parameter: {self.keeps}; {decay}"
