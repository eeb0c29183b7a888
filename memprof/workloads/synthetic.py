"""Synthetic batches on the host, in numpy: deterministic for a given generator, and with something to learn.

A model trains on them for real, so that a run can be told from one that does nothing.
"""

from __future__ import annotations

import numpy as np


def labelled_points(
    rng: np.random.Generator, num_points: int, num_features: int, num_classes: int
) -> dict[str, np.ndarray]:
    """Returns points in float32 `(points, features)`, each labelled with the largest of its first features."""
    inputs = rng.standard_normal((num_points, num_features), dtype=np.float32)
    return {"inputs": inputs, "labels": np.argmax(inputs[:, :num_classes], axis=1).astype(np.int32)}


def token_sequences(rng: np.random.Generator, num_sequences: int, length: int, vocab_size: int) -> np.ndarray:
    """Returns int32 `(sequences, length)`. Each token follows from the one before it and the toss of a coin."""
    tokens = np.empty((num_sequences, length), np.int64)
    tokens[:, 0] = rng.integers(vocab_size, size=num_sequences)
    coins = rng.integers(2, size=(num_sequences, length))
    for position in range(1, length):
        tokens[:, position] = (5 * tokens[:, position - 1] + 1 + coins[:, position]) % vocab_size
    return tokens.astype(np.int32)


def padding(rng: np.random.Generator, num_sequences: int, length: int) -> np.ndarray:
    """Returns bool `(sequences, length)`: True for the real tokens, a random half or more of each, then False."""
    num_real = rng.integers((length + 1) // 2, length + 1, size=num_sequences)
    is_real: np.ndarray = np.arange(length) < num_real[:, None]
    return is_real


def packing(rng: np.random.Generator, num_sequences: int, length: int) -> np.ndarray:
    """Returns bool `(sequences, length, length)`: True where query and key are in the same of two packed documents."""
    second_starts = rng.integers(length, size=num_sequences)
    in_second = np.arange(length) >= second_starts[:, None]
    in_same: np.ndarray = in_second[:, :, None] == in_second[:, None, :]
    return in_same
