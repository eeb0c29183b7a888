"""The training step: one forward pass, one backward pass, one update.

A `Trainer` makes everything that a step needs, abstract or concrete:

    trainer = Trainer(model=model, optimizer=optax.adamw(1e-3), seed=0)
    jax.jit(trainer.step).lower(trainer.abstract_state(), trainer.abstract_batch())     # allocates nothing
    state, metrics = jax.jit(trainer.step)(trainer.init_state(), trainer.sample_batch(0))

JAX names the arguments of `step` after its signature: `state.params['layers_0']...`, `batch['inputs']`. The roles in
`ROLES` rest on these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

from memprof.analysis.categories import Role
from memprof.workloads.losses import Metrics, mean
from memprof.workloads.model import Batch, Model, Params

ROLES = {"state.params": Role.PARAMS, "state.opt_state": Role.OPTIMIZER_STATE, "batch": Role.BATCH}
STATE_ARGNUM = 0


class TrainState(train_state.TrainState):
    """Flax's training state with the key that dropout is derived from: uint32 `(2,)`, the same over all steps."""

    rng: jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A model with an optimizer.

    Attributes:
        model: what is trained.
        optimizer: what updates it.
        seed: of the parameters, of dropout and of the synthetic batches.
    """

    model: Model
    optimizer: optax.GradientTransformation
    seed: int

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Makes one update; returns the new state and the metrics from before it."""
        dropout_rng = jax.random.fold_in(state.rng, state.step)

        def loss(params: Params) -> tuple[jax.Array, Metrics]:
            metrics = self.model.metrics(params, batch, dropout_rng)
            return mean(metrics["loss"]), metrics

        gradients, metrics = jax.grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients), metrics

    def abstract_state(self) -> TrainState:
        """Returns the state as shapes and dtypes. Nothing is allocated."""
        state: TrainState = jax.eval_shape(self._init_state)
        return state

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the batch as shapes and dtypes. Nothing is allocated."""
        return dict(self.model.batch_shapes)

    def init_state(self) -> TrainState:
        """Returns a new state on the default device."""
        state: TrainState = jax.jit(self._init_state)()
        return state

    def sample_batch(self, index: int) -> dict[str, np.ndarray]:
        """Returns the synthetic batch number `index`, on the host; equal for equal seed and index."""
        return self.model.sample(np.random.default_rng((self.seed, index)))

    def _init_state(self) -> TrainState:
        params_rng, state_rng = jax.random.split(jax.random.PRNGKey(self.seed))
        params = self.model.init_params(params_rng)
        fields: dict[str, Any] = {
            # Flax starts at the Python number 0, a weak type, which would compile the second step anew.
            "step": jnp.zeros((), jnp.int32),
            "apply_fn": self.model.module.apply,
            "params": params,
            "tx": self.optimizer,
            "opt_state": self.optimizer.init(params),
            "rng": state_rng,
        }
        return TrainState(**fields)
