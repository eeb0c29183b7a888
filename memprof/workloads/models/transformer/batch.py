"""The batches of a Transformer: their shapes, and synthetic batches with a pattern that can be learnt.

Synthetic batches are made on the host, in numpy, and equal generators make equal batches. A model really learns from
them: its loss falls, unlike that of a run that does no work.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.models.transformer.config import TransformerConfig


def batch_shapes(config: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype of the batch: tokens, labels (per token or per sequence), and the requested masks."""
    by_token = (config.batch_size, config.seq_len)
    by_sequence = (config.batch_size,)
    shapes = {
        "inputs": jax.ShapeDtypeStruct(by_token, jnp.int32),
        "labels": jax.ShapeDtypeStruct(by_sequence if config.task == "classification" else by_token, jnp.int32),
    }
    if config.padding_mask:
        shapes["input_mask"] = jax.ShapeDtypeStruct(by_token, jnp.bool_)
    if config.custom_mask:
        shapes["attention_mask"] = jax.ShapeDtypeStruct((*by_token, config.seq_len), jnp.bool_)
    return shapes


def sample(config: TransformerConfig, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a synthetic batch. A sequence's class is that of its first token; padding is token 0."""
    tokens = token_sequences(rng, config.batch_size, config.seq_len + 1, config.vocab_size)
    batch = {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]}
    if config.task == "classification":
        batch["labels"] = tokens[:, 0] % config.num_classes
    if config.padding_mask:
        batch["input_mask"] = padding(rng, config.batch_size, config.seq_len)
        batch["inputs"] = np.where(batch["input_mask"], batch["inputs"], 0)
    if config.custom_mask:
        batch["attention_mask"] = packing(rng, config.batch_size, config.seq_len)
    return batch


def token_sequences(rng: np.random.Generator, num_sequences: int, length: int, vocab_size: int) -> np.ndarray:
    """Return int32 `(sequences, length)`. Each token depends on the one before it and on a coin toss."""
    tokens = np.empty((num_sequences, length), np.int64)
    tokens[:, 0] = rng.integers(vocab_size, size=num_sequences)
    coins = rng.integers(2, size=(num_sequences, length))
    for position in range(1, length):
        tokens[:, position] = (5 * tokens[:, position - 1] + 1 + coins[:, position]) % vocab_size
    return tokens.astype(np.int32)


def padding(rng: np.random.Generator, num_sequences: int, length: int) -> np.ndarray:
    """Return bool `(sequences, length)`: True for the real tokens, at least half of each sequence, then False."""
    num_real = rng.integers((length + 1) // 2, length + 1, size=num_sequences)
    is_real: np.ndarray = np.arange(length) < num_real[:, None]
    return is_real


def packing(rng: np.random.Generator, num_sequences: int, length: int) -> np.ndarray:
    """Return bool `(sequences, length, length)`: True if query and key are in the same of two packed documents."""
    second_starts = rng.integers(length, size=num_sequences)
    in_second = np.arange(length) >= second_starts[:, None]
    in_same: np.ndarray = in_second[:, :, None] == in_second[:, None, :]
    return in_same
