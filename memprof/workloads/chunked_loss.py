"""The loss in chunks of tokens: only one chunk's logits exist at a time.

The logits of a language model are often its largest activation: tokens by vocabulary, in float32, and their gradient
beside them. Here a loop goes through chunks of the tokens; each chunk's logits are made, reduced to a loss, dropped,
and made again in the backward pass. The sums over tokens are the same as without chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from memprof.workloads.losses import Metrics

Tokens = Mapping[str, jax.Array]


def split_tokens(entries: Tokens, num_chunks: int) -> dict[str, jax.Array]:
    """Returns entries `(batch, length, ...)` as `(chunks, tokens in a chunk, ...)`."""

    def split(entry: jax.Array) -> jax.Array:
        batch, length, *rest = entry.shape
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

    with jax.named_scope("loss_chunks"):
        _, metrics = jax.lax.scan(step, None, chunks)
        return jax.tree.map(jnp.sum, metrics)
