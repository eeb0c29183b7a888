"""Loss, gradients and metrics of a batch, with or without loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

from memprof.workloads.losses import Metrics, mean
from memprof.workloads.model import Params


class Scaling(NamedTuple):
    """What became of loss scaling: the scale for the next step, and whether the gradients are finite, bool `()`."""

    next_scale: DynamicScale
    is_finite: jax.Array


class Evaluation(NamedTuple):
    """Gradients of the mean loss, and the metrics as (sum, count) pairs; `scaling` is None where nothing is scaled."""

    gradients: Params
    metrics: Metrics
    scaling: Scaling | None


def evaluate(metrics_of: Callable[[Params], Metrics], params: Params, scale: DynamicScale | None) -> Evaluation:
    """Runs a model forwards and backwards.

    Args:
        metrics_of: the metrics of a batch with given parameters; the mean of `loss` is differentiated.
        scale: what the loss is multiplied by before it is differentiated; the gradients are divided by it again.
    """

    def loss(params: Params) -> tuple[jax.Array, Metrics]:
        metrics = metrics_of(params)
        return mean(metrics["loss"]), metrics

    if scale is None:
        gradients, metrics = jax.grad(loss, has_aux=True)(params)
        return Evaluation(gradients, metrics, None)
    next_scale, is_finite, (_, metrics), gradients = scale.value_and_grad(loss, has_aux=True)(params)
    return Evaluation(gradients, metrics, Scaling(next_scale, is_finite))


def new_scale() -> DynamicScale:
    """Returns the scale to start with, as arrays: Flax starts at Python numbers, which would compile step two anew."""
    start = DynamicScale()
    return start.replace(fin_steps=jnp.int32(start.fin_steps), scale=jnp.float32(start.scale))
