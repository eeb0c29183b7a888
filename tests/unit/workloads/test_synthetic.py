"""Synthetic batches: what the models learn from them, and that masks look like real ones."""

from __future__ import annotations

import numpy as np

from memprof.workloads.models.mlp.network import labelled_points
from memprof.workloads.models.transformer import batch as synthetic


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_token_follows_from_the_one_before_it():
    tokens = synthetic.token_sequences(rng(), 3, 50, 17)
    coins = (tokens[:, 1:] - 5 * tokens[:, :-1] - 1) % 17
    assert set(np.unique(coins)) == {0, 1}
    assert tokens.dtype == np.int32
    assert tokens.min() >= 0
    assert tokens.max() < 17


def test_padding_is_at_the_end_and_leaves_half_of_each_sequence_or_more():
    is_real = synthetic.padding(rng(), 50, 9)
    lengths = is_real.sum(axis=1)
    assert (is_real == (np.arange(9) < lengths[:, None])).all()
    assert set(lengths) == {5, 6, 7, 8, 9}


def test_a_single_token_is_never_padding():
    assert synthetic.padding(rng(), 20, 1).all()


def test_packing_is_two_blocks_on_the_diagonal():
    for allowed in synthetic.packing(rng(), 20, 5):
        num_first = int(allowed[0].sum())
        start = num_first if num_first < 5 else 0
        in_second = np.arange(5) >= start
        assert (allowed == (in_second[:, None] == in_second[None, :])).all()


def test_points_are_labelled_with_their_largest_feature():
    batch = labelled_points(rng(), 4, 6, 3)
    assert batch["labels"].tolist() == np.argmax(batch["inputs"][:, :3], axis=1).tolist()
    assert (batch["inputs"].dtype, batch["labels"].dtype) == (np.float32, np.int32)
