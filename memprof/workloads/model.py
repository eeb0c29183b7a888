"""A model that can be trained: a Flax module, what a batch of it looks like, and its loss.

The training step knows nothing else about a workload, so that whatever changes the step (accumulation, loss scaling,
...) works for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.losses import Metrics

Params = dict[str, Any]
Batch = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Flax module with its batch and its loss.

    Attributes:
        module: the module in training mode (dropout is on). Its arguments have the names of batch entries.
        inputs: the entries of the batch that the module takes.
        loss: from the module's result and the batch to metrics, of which `loss` is minimised.
        batch_shapes: shape and dtype of each entry of the batch.
        sample: makes a synthetic batch of these shapes on the host, with something in it that can be learnt.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    loss: Callable[[jax.Array, Batch], Metrics]
    batch_shapes: Mapping[str, jax.ShapeDtypeStruct]
    sample: Callable[[np.random.Generator], dict[str, np.ndarray]]

    def init_params(self, rng: jax.Array) -> Params:
        """Returns new parameters. Under `jax.eval_shape` or `jax.jit` the forward pass in here costs nothing."""
        params_rng, dropout_rng = jax.random.split(rng)
        inputs = {name: jnp.zeros(self.batch_shapes[name].shape, self.batch_shapes[name].dtype) for name in self.inputs}
        variables = self.module.init({"params": params_rng, "dropout": dropout_rng}, **inputs)
        params: Params = variables["params"]
        return params

    def metrics(self, params: Params, batch: Batch, dropout_rng: jax.Array) -> Metrics:
        """Runs the module on a batch, or on a part of one, and returns its metrics as (sum, count) pairs."""
        inputs = {name: batch[name] for name in self.inputs}
        outputs = self.module.apply({"params": params}, **inputs, rngs={"dropout": dropout_rng})
        return self.loss(outputs, batch)
