"""Losses, as metrics that can be summed over batches and devices: each metric is a pair (sum, count), float32.

The logits of a language model are often its largest activation: tokens by vocabulary, in float32, and their gradient
beside them. With chunks (`sum_over_chunks`), a loop goes through the tokens. It computes each chunk's logits, reduces
them to a loss and frees them; the backward pass recomputes them. The sums over tokens are the same as without chunks.
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
    """Cross-entropy of integer labels, for classification and next-token prediction.

    Attributes:
        labels: the batch entry with the labels: int32, the logits' shape without its last axis.
        counted: the boolean batch entry of the same shape that marks the labels that count; None if all count.
    """

    labels: str = "labels"
    counted: str | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        """The batch entries that it reads."""
        return (self.labels,) if self.counted is None else (self.labels, self.counted)

    def __call__(self, logits: jax.Array, batch: Mapping[str, jax.Array]) -> Metrics:
        """Return `loss` and `accuracy`, each as (sum, count).

        Args:
            logits: float32 `(..., num_classes)`; log-probabilities also work.
            batch: the batch that the logits belong to.
        """
        logits = logits.astype(jnp.float32)
        labels = batch[self.labels]
        # This gathers the label's logit by index: no one-hot labels, and no log-probabilities as large as the logits.
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        correct = jnp.argmax(logits, axis=-1) == labels
        weights = jnp.ones_like(losses) if self.counted is None else batch[self.counted].astype(jnp.float32)
        count = jnp.sum(weights)
        return {"loss": (jnp.sum(losses * weights), count), "accuracy": (jnp.sum(correct * weights), count)}


def mean(metric: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return the mean of a (sum, count) pair; zero if nothing counts, as in a batch of padding."""
    total, count = metric
    return total / jnp.maximum(count, 1.0)


def add_to_loss(metrics: Metrics, losses: Any) -> Metrics:
    """Return the metrics, with the sum of a pytree of losses added to the mean loss."""
    leaves = jax.tree.leaves(losses)
    if not leaves:
        return metrics
    total, count = metrics["loss"]
    return {**metrics, "loss": (total + count * sum(jnp.sum(leaf) for leaf in leaves), count)}


def split_tokens(entries: Tokens, num_chunks: int, *, by_length: bool = False) -> dict[str, jax.Array]:
    """Return entries `(batch, length, ...)` as `(chunks, tokens in a chunk, ...)`.

    Args:
        by_length: whether each chunk takes tokens from all sequences if possible, so that each device that shares the
            batch has a part of it. Otherwise the chunks go through one sequence after another.
    """

    def split(entry: jax.Array) -> jax.Array:
        batch, length, *rest = entry.shape
        if by_length and length % num_chunks == 0:
            by_sequence = entry.reshape(batch, num_chunks, length // num_chunks, *rest)
            return by_sequence.swapaxes(0, 1).reshape(num_chunks, batch * length // num_chunks, *rest)
        return entry.reshape(num_chunks, batch * length // num_chunks, *rest)

    return {name: split(entry) for name, entry in entries.items()}


def sum_over_chunks(of_chunk: Callable[[Any, Tokens], Metrics], params: Any, chunks: Tokens) -> Metrics:
    """Return the sum of the chunks' metrics.

    Args:
        of_chunk: metrics of one chunk, differentiable by the parameters and by the chunk's entries.
        params: the first argument of `of_chunk`.
        chunks: entries whose first axis is the chunk.
    """
    # In a loop, the forward and backward pass are separate, so XLA cannot merge them and needs no barrier.
    checkpointed = jax.checkpoint(of_chunk, prevent_cse=False)

    def step(carry: None, chunk: Tokens) -> tuple[None, Metrics]:
        return carry, checkpointed(params, chunk)

    with jax.named_scope(LOSS_CHUNKS):
        _, metrics = jax.lax.scan(step, None, chunks)
        return jax.tree.map(jnp.sum, metrics)
