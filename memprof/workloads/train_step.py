"""The training step: forward and backward pass, whole or in minibatches, and one update.

A `Trainer` makes everything that a step needs, abstract or concrete:

    trainer = Trainer(model=model, optimizer=optax.adamw(1e-3), config=TrainConfig())
    jax.jit(trainer.step).lower(trainer.abstract_state(), trainer.abstract_batch())     # allocates nothing
    state, metrics = jax.jit(trainer.step)(trainer.init_state(), trainer.sample_batch(0))

JAX names the arguments of `step` after its signature: `state.params['layers_0']...`, `batch['inputs']`. The roles in
`ROLES` depend on these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import Mesh

from memprof.analysis.records.categories import Role
from memprof.sources.jax.tracing.step import Feed, StepSpec
from memprof.workloads.gradients import Evaluation, accumulate, evaluate, new_scale
from memprof.workloads.losses import Metrics
from memprof.workloads.model import Batch, Model, Params
from memprof.workloads.pruning import apply_masks, magnitude_masks
from memprof.workloads.sharding import Layout, with_shardings
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    from memprof.workloads.user.train_spec import UserModel

ROLES = {
    "state": Role.OTHER_STATE,  # anything except the next two
    "state.params": Role.PARAMS,
    "state.opt_state": Role.OPTIMIZER_STATE,
    "batch": Role.BATCH,
}
OPTIMIZER_STATE_PATH = "state.opt_state"
STATE_ARGNUM = 0
HOST_MEMORY_KIND = "pinned_host"


class TrainState(train_state.TrainState):
    """Flax's training state with the additions of some techniques.

    Attributes:
        rng: the key that dropout is derived from: uint32 `(2,)`, the same over all steps.
        dynamic_scale: scale of the loss; None if it is not scaled.
        masks: masks of pruned parameters, bool, in their tree; None if no parameters are pruned.
    """

    rng: jax.Array
    dynamic_scale: DynamicScale | None = None
    masks: Any = None

    def apply_gradients(self, *, grads: Any, **changes: Any) -> TrainState:
        """Make one update. Flax's own method looks up a key in the parameters, which need not be a mapping here."""
        if isinstance(grads, Mapping):
            return super().apply_gradients(grads=grads, **changes)
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = optax.apply_updates(self.params, updates)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A model with an optimizer and the configuration of the step.

    Attributes:
        model: the model to train.
        optimizer: the optimizer that updates it.
        config: the training configuration; its seed is that of the parameters, of dropout and of the synthetic batches.
        mesh: the devices that share the step; None for one device.
    """

    model: Model | UserModel
    optimizer: optax.GradientTransformation
    config: TrainConfig
    mesh: Mesh | None = None

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Make one update; return the new state and the metrics from before it.

        If the loss is scaled and a gradient is not finite, there is no update: only the scale changes.
        """
        if self.mesh is None:
            return self._step(state, batch)
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            updated, metrics = self._step(state, batch)
        return updated, metrics

    def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        evaluation = self._evaluate(state, batch)
        gradients = jax.tree.map(lambda leaf, param: leaf.astype(param.dtype), evaluation.gradients, state.params)
        if self.config.offload_optimizer:
            # Without the barrier XLA fetches the state early, while the activations are still live.
            gradients, opt_state = jax.lax.optimization_barrier((gradients, state.opt_state))
            state = _move_optimizer_state(state.replace(opt_state=opt_state), jax.memory.Space.Device)
        updated = state.apply_gradients(grads=gradients)
        if evaluation.scaling is not None:
            is_finite, next_scale = evaluation.scaling.is_finite, evaluation.scaling.next_scale
            updated = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), updated, state)
            updated = updated.replace(dynamic_scale=next_scale)
        if self._layout is not None:
            updated = jax.lax.with_sharding_constraint(updated, self._layout.of_state(updated))
        if self.config.offload_optimizer:
            updated = _move_optimizer_state(updated, jax.memory.Space.Host)
        return updated, evaluation.metrics

    def abstract_state(self) -> TrainState:
        """Return the state as shapes and dtypes, with shardings on a mesh. This allocates nothing."""
        state: TrainState = jax.eval_shape(self._init_state)
        return state if self._layout is None else with_shardings(state, self._layout.of_state(state))

    def abstract_batch(self) -> Any:
        """Return the batch as shapes and dtypes, with shardings on a mesh. This allocates nothing."""
        batch = self.model.batch_shapes
        return batch if self._layout is None else with_shardings(batch, self._layout.of_batch(batch))

    def init_state(self) -> TrainState:
        """Return a new state on the default device, or in the memory that the step expects."""
        if self._layout is None:
            return self._placed(jax.jit(self._init_state)())
        shardings = self._layout.of_state(jax.eval_shape(self._init_state))
        return self._placed(jax.jit(self._init_state, out_shardings=shardings)())

    def state_of(self, params: Params) -> TrainState:
        """Return a new state around given parameters, for example those of another configuration."""
        state = self._state(params)
        return self._placed(state if self._layout is None else jax.device_put(state, self._layout.of_state(state)))

    def _placed(self, state: TrainState) -> TrainState:
        if not self.config.offload_optimizer:
            return state
        host = jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind(HOST_MEMORY_KIND), state.opt_state)
        return state.replace(opt_state=jax.device_put(state.opt_state, host))

    @property
    def _layout(self) -> Layout | None:
        if self.mesh is None:
            return None
        return Layout(mesh=self.mesh, config=self.config, tensor_axes=self.model.tensor_axes)

    def sample_batch(self, index: int) -> Any:
        """Return the synthetic batch number `index`, on the host; equal for equal seed and index."""
        return self.model.sample(np.random.default_rng((self.config.seed, index)))

    def spec(self, *, num_examples: int, num_tokens: int | None = None) -> StepSpec:
        """Return the step with abstract arguments; to run it, it gets a new state, and a synthetic batch each time."""
        state = self.abstract_state()
        has_state = bool(jax.tree.leaves(state.opt_state))  # plain SGD has none
        return StepSpec(
            fn=self.step,
            args=(state, self.abstract_batch()),
            roles={path: role for path, role in ROLES.items() if has_state or path != OPTIMIZER_STATE_PATH},
            donate_argnums=(STATE_ARGNUM,) if self.config.donate else (),
            compiler_options=self.config.compiler_option_values(),
            memory_kinds={OPTIMIZER_STATE_PATH: HOST_MEMORY_KIND} if self.config.offload_optimizer else {},
            feed=Feed(
                argument=lambda number, step: self.init_state() if number == STATE_ARGNUM else self.sample_batch(step),
                loss=mean_loss,
                num_examples=num_examples,
                num_tokens=num_tokens,
            ),
        )

    def _evaluate(self, state: TrainState, batch: Batch) -> Evaluation:
        dropout_rng = jax.random.fold_in(state.rng, state.step)
        if self.config.num_minibatches == 1:
            return self._evaluate_part(state, batch, dropout_rng)
        return accumulate(
            lambda part, number: self._evaluate_part(state, part, jax.random.fold_in(dropout_rng, number)),
            batch,
            self.config.num_minibatches,
            self.config.accumulation,
        )

    def _evaluate_part(self, state: TrainState, batch: Batch, dropout_rng: jax.Array) -> Evaluation:
        def metrics(params: Params) -> Metrics:
            masked = params if state.masks is None else apply_masks(params, state.masks)
            return self.model.metrics(masked, batch, dropout_rng)

        if self._layout is None:
            return evaluate(metrics, state.params, state.dynamic_scale)
        batch = jax.lax.with_sharding_constraint(batch, self._layout.of_batch(batch))
        evaluation = evaluate(metrics, state.params, state.dynamic_scale)
        shardings = self._layout.of_gradients(state.params)
        return evaluation._replace(gradients=jax.lax.with_sharding_constraint(evaluation.gradients, shardings))

    def _init_state(self) -> TrainState:
        return self._state(self.model.init_params(jax.random.fold_in(self._rng(), 0)))

    def _rng(self) -> jax.Array:
        return jax.random.PRNGKey(self.config.seed)

    def _state(self, params: Params) -> TrainState:
        fraction = self.config.pruned_fraction
        fields: dict[str, Any] = {
            # Flax starts with the Python number 0, a weak type, which would recompile the second step.
            "step": jnp.zeros((), jnp.int32),
            "apply_fn": self.model.apply_fn,
            "params": params,
            "tx": self.optimizer,
            "opt_state": self.optimizer.init(params),
            "rng": jax.random.fold_in(self._rng(), 1),
            "dynamic_scale": new_scale() if self.config.loss_scaling else None,
            "masks": magnitude_masks(params, fraction) if fraction else None,
        }
        return TrainState(**fields)


def mean_loss(result: tuple[TrainState, Metrics]) -> float:
    """Return the loss of a finished step. It is computed on the host, so that it uses no device memory."""
    total, count = jax.device_get(result[1]["loss"])
    return float(total) / max(float(count), 1.0)


def _move_optimizer_state(state: TrainState, space: jax.memory.Space) -> TrainState:
    return state.replace(opt_state=jax.device_put(state.opt_state, space))
