"""Losses, as metrics that can be added up over batches and devices: each metric is a pair (sum, count), float32.

The logits of a language model are often its largest activation: tokens by vocabulary, in float32, and their gradient
beside them. In chunks (`sum_over_chunks`) a loop goes through the tokens; each chunk's logits are made, reduced to a
loss, dropped, and made again in the backward pass. The sums over tokens are the same as without chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from memprof.workloads.scopes import LOSS_CHUNKS

Metrics = dict[str, tuple[jax.Array, jax.Array]]
Tokens = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy:
    """Cross-entropy of integer labels, for classification and for the prediction of the next token.

    Attributes:
        labels: the batch entry with the labels: int32, the logits' shape without its last axis.
        counted: the boolean batch entry of the same shape that says which labels count; None where all do.
    """

    labels: str = "labels"
    counted: str | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries of the batch that it reads."""
        return (self.labels,) if self.counted is None else (self.labels, self.counted)

    def __call__(self, logits: jax.Array, batch: Mapping[str, jax.Array]) -> Metrics:
        """Returns `loss` and `accuracy`, each as (sum, count).

        Args:
            logits: float32 `(..., num_classes)`; log-probabilities do as well.
            batch: the batch that the logits are for.
        """
        logits = logits.astype(jnp.float32)
        labels = batch[self.labels]
        # It takes the label's logit by index: neither one-hot labels nor log-probabilities as large as the logits.
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        correct = jnp.argmax(logits, axis=-1) == labels
        weights = jnp.ones_like(losses) if self.counted is None else batch[self.counted].astype(jnp.float32)
        count = jnp.sum(weights)
        return {"loss": (jnp.sum(losses * weights), count), "accuracy": (jnp.sum(correct * weights), count)}


def mean(metric: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the mean of a (sum, count) pair; zero where nothing counts, as in a batch of padding."""
    total, count = metric
    return total / jnp.maximum(count, 1.0)


def add_to_loss(metrics: Metrics, losses: Any) -> Metrics:
    """Returns the metrics with their mean loss larger by the sum of a pytree of losses."""
    leaves = jax.tree.leaves(losses)
    if not leaves:
        return metrics
    total, count = metrics["loss"]
    return {**metrics, "loss": (total + count * sum(jnp.sum(leaf) for leaf in leaves), count)}


def split_tokens(entries: Tokens, num_chunks: int, *, by_length: bool = False) -> dict[str, jax.Array]:
    """Returns entries `(batch, length, ...)` as `(chunks, tokens in a chunk, ...)`.

    Args:
        by_length: whether each chunk has tokens of all sequences, if it can be, so that devices that share the batch
            all have some of it; else sequence follows sequence.
    """

    def split(entry: jax.Array) -> jax.Array:
        batch, length, *rest = entry.shape
        if by_length and length % num_chunks == 0:
            by_sequence = entry.reshape(batch, num_chunks, length // num_chunks, *rest)
            return by_sequence.swapaxes(0, 1).reshape(num_chunks, batch * length // num_chunks, *rest)
        return entry.reshape(num_chunks, batch * length // num_chunks, *rest)

    return {name: split(entry) for name, entry in entries.items()}


def sum_over_chunks(of_chunk: Callable[[Any, Tokens], Metrics], params: Any, chunks: Tokens) -> Metrics:
    """Returns the sum of the chunks' metrics.

    Args:
        of_chunk: metrics of one chunk, differentiable by its parameters and by what the chunk holds.
        params: its first argument.
        chunks: entries with the chunk as their first axis.
    """
    # In a loop, forward and backward pass are apart, and nothing need keep XLA from joining them.
    checkpointed = jax.checkpoint(of_chunk, prevent_cse=False)

    def step(carry: None, chunk: Tokens) -> tuple[None, Metrics]:
        return carry, checkpointed(params, chunk)

    with jax.named_scope(LOSS_CHUNKS):
        _, metrics = jax.lax.scan(step, None, chunks)
        return jax.tree.map(jnp.sum, metrics)
