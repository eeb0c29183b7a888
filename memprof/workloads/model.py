"""A trainable model: a Flax module, the shapes of its batch, and its loss.

The training step knows nothing else about a workload, so a change to the step (accumulation, loss scaling, ...) works
for every workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.losses import CrossEntropy, Metrics, add_to_loss, split_tokens, sum_over_chunks
from memprof.workloads.scopes import LOSSES
from memprof.workloads.sharding import is_shared

Params = dict[str, Any]
Batch = Mapping[str, jax.Array]


class Unpruned(NamedTuple):
    """The original module of a pruned one, and the function that prunes its parameters."""

    module: nn.Module
    prune: Callable[[Params], Params]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Flax module with its batch and its loss.

    Attributes:
        module: the module in training mode (dropout is on). Its arguments have the names of batch entries. A module
            that computes its loss in chunks has two halves, the methods `encode` and `decode`.
        unpruned: the module before structural pruning; None if it is not pruned.
        inputs: the entries of the batch that the module takes.
        loss: maps the module's result and the batch to metrics; the metric `loss` is minimised.
        num_loss_chunks: number of parts in which the second half of the module and the loss are computed.
        batch_shapes: shape and dtype of each entry of the batch.
        sample: makes a synthetic batch of these shapes on the host, with a pattern that can be learnt.
        tensor_axes: the axis of each parameter that tensor parallelism divides (see `sharding.Layout`).
    """

    module: nn.Module
    unpruned: Unpruned | None = None
    inputs: tuple[str, ...]
    loss: CrossEntropy
    num_loss_chunks: int = 1
    batch_shapes: Mapping[str, jax.ShapeDtypeStruct]
    sample: Callable[[np.random.Generator], dict[str, np.ndarray]]
    tensor_axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def apply_fn(self) -> Callable[..., Any]:
        """The function that Flax's `TrainState` carries along."""
        return self.module.apply

    def init_params(self, rng: jax.Array) -> Params:
        """Return new parameters. Under `jax.eval_shape` or `jax.jit` the forward pass in here costs nothing."""
        params_rng, dropout_rng = jax.random.split(rng)
        inputs = {name: jnp.zeros(self.batch_shapes[name].shape, self.batch_shapes[name].dtype) for name in self.inputs}
        module = self.module if self.unpruned is None else self.unpruned.module
        variables = module.init({"params": params_rng, "dropout": dropout_rng}, **inputs)
        params: Params = variables["params"]
        return params if self.unpruned is None else self.unpruned.prune(params)

    def metrics(self, params: Params, batch: Batch, dropout_rng: jax.Array) -> Metrics:
        """Run the module on a batch, or on a part of one, and return its metrics as (sum, count) pairs."""
        inputs = {name: batch[name] for name in self.inputs}
        in_chunks = self.num_loss_chunks > 1
        result, sown = self.module.apply(
            {"params": params},
            **inputs,
            rngs={"dropout": dropout_rng},
            mutable=[LOSSES],
            method="encode" if in_chunks else None,
        )
        if not in_chunks:
            return add_to_loss(self.loss(result, batch), sown)

        def of_chunk(params: Params, chunk: Batch) -> Metrics:
            return self.loss(self.module.apply({"params": params}, chunk["hidden"], method="decode"), chunk)

        by_token = {"hidden": result, **{name: batch[name] for name in self.loss.entries}}
        chunks = split_tokens(by_token, self.num_loss_chunks, by_length=is_shared())
        metrics = sum_over_chunks(of_chunk, params, chunks)
        return add_to_loss(metrics, sown)
