"""Compute loss, gradients and metrics of a batch, with or without loss scaling, whole or in parts.

The gradients of the parts are combined into those of the whole batch. Parts may count different numbers of tokens
(padding), so a part's mean gradient is weighted by its number of tokens:

    gradient of the whole batch = sum over parts of (count x gradient of the part's mean loss) / sum of counts

The weight is applied after differentiation, because a loss that is a sum instead of a mean would overflow in float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

from memprof.workloads.losses import Metrics, mean
from memprof.workloads.model import Batch, Params
from memprof.workloads.scopes import MINIBATCHES
from memprof.workloads.sharding import is_shared


class Scaling(NamedTuple):
    """The outcome of loss scaling: the next step's scale, and whether the gradients are finite, bool `()`."""

    next_scale: DynamicScale
    is_finite: jax.Array


class Evaluation(NamedTuple):
    """Gradients of the mean loss, and metrics as (sum, count) pairs; `scaling` is None if the loss is not scaled."""

    gradients: Params
    metrics: Metrics
    scaling: Scaling | None


EvaluatePart = Callable[[Batch, jax.Array], Evaluation]


def evaluate(metrics_of: Callable[[Params], Metrics], params: Params, scale: DynamicScale | None) -> Evaluation:
    """Run a model forwards and backwards.

    Args:
        metrics_of: maps parameters to the metrics of a batch; the mean of `loss` is differentiated.
        scale: factor that multiplies the loss before differentiation; the gradients are divided by it afterwards.
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
    """Return the initial scale as arrays: Flax starts with Python numbers, which would recompile the second step."""
    start = DynamicScale()
    return start.replace(fin_steps=jnp.int32(start.fin_steps), scale=jnp.float32(start.scale))


def accumulate(
    evaluate: EvaluatePart, batch: Batch, num_parts: int, accumulation: Literal["scan", "unrolled"]
) -> Evaluation:
    """Return the evaluation of the whole batch, computed in parts.

    Args:
        evaluate: evaluates one part, given the part and its number (int32 `()`).
        batch: a pytree of arrays whose first axis is the example.
        num_parts: number of parts; it divides the number of examples.
        accumulation: whether the program loops over the parts or contains a copy of the step for each part.
    """

    def in_parts(entry: jax.Array) -> jax.Array:
        if is_shared():  # every device has some examples of each part
            return entry.reshape(-1, num_parts, *entry.shape[1:]).swapaxes(0, 1)
        return entry.reshape(num_parts, -1, *entry.shape[1:])

    parts = jax.tree.map(in_parts, batch)

    def evaluate_number(number: jax.Array, part: Mapping[str, jax.Array]) -> Evaluation:
        return _weighted(evaluate(part, number))

    if accumulation == "scan":
        total = _by_scan(evaluate_number, parts, num_parts)
    else:
        total = _unrolled(evaluate_number, parts, num_parts)
    return _mean(total)


def _by_scan(evaluate: Callable[..., Evaluation], parts: Batch, num_parts: int) -> Evaluation:
    shapes = jax.eval_shape(evaluate, jnp.int32(0), _part(parts, 0))
    nothing: Evaluation = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    if nothing.scaling is not None:  # an empty sum is finite
        nothing = nothing._replace(scaling=nothing.scaling._replace(is_finite=jnp.array(True)))

    def step(total: Evaluation, numbered: tuple[jax.Array, Batch]) -> tuple[Evaluation, None]:
        return _sum(total, evaluate(*numbered)), None

    with jax.named_scope(MINIBATCHES):
        total, _ = jax.lax.scan(step, nothing, (jnp.arange(num_parts), parts))
    return total


def _unrolled(evaluate: Callable[..., Evaluation], parts: Batch, num_parts: int) -> Evaluation:
    total = None
    for number in range(num_parts):
        with jax.named_scope(f"{MINIBATCHES}_{number}"):
            part = evaluate(jnp.int32(number), _part(parts, number))
            total = part if total is None else _sum(total, part)
    assert total is not None
    return total


def _part(parts: Batch, number: int) -> Batch:
    part: Batch = jax.tree.map(lambda entry: entry[number], parts)
    return part


def _weighted(part: Evaluation) -> Evaluation:
    """Return the part with its gradients multiplied by its count, in float32, whatever the parameters' dtype."""
    count = part.metrics["loss"][1]
    return part._replace(gradients=jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * count, part.gradients))


def _mean(total: Evaluation) -> Evaluation:
    count = jnp.maximum(total.metrics["loss"][1], 1.0)
    return total._replace(gradients=jax.tree.map(lambda leaf: leaf / count, total.gradients))


def _sum(first: Evaluation, second: Evaluation) -> Evaluation:
    return Evaluation(
        gradients=jax.tree.map(jnp.add, first.gradients, second.gradients),
        metrics=jax.tree.map(jnp.add, first.metrics, second.metrics),
        scaling=_joined(first.scaling, second.scaling),
    )


def _joined(first: Scaling | None, second: Scaling | None) -> Scaling | None:
    """Return the first part's scaling that is not finite; if all are finite, they agree."""
    if first is None or second is None:
        return None
    joined: Scaling = jax.tree.map(lambda ours, theirs: jnp.where(first.is_finite, theirs, ours), first, second)
    return joined
