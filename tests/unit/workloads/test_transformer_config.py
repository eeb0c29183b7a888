"""Choices of a Transformer that cannot be built are rejected, each with the sentence that the user sees."""

from __future__ import annotations

import dataclasses

import pytest

from memprof.errors import MemprofError
from memprof.workloads.models.mlp import WORKLOAD as MLP
from memprof.workloads.models.transformer import TINY

BAD_VALUES = [
    ({"batch_size": 0}, "batch_size is 0, but it must be a number above zero."),
    ({"mlp_size": -1}, "mlp_size is -1, but it must be a number above zero."),
    ({"dropout_rate": 1.0}, "dropout_rate is 1.0, but a rate must be at least 0 and below 1."),
    ({"attention_dropout_rate": -0.1}, "attention_dropout_rate is -0.1, but a rate must be at least 0 and below 1."),
    ({"seq_len": 25}, "seq_len is 25, but the position table has max_seq_len = 24 rows: set both."),
    ({"num_heads": 3}, "hidden_size is 32, but it must be a multiple of num_heads = 3, unless head_size is set."),
    ({"num_kv_heads": 3}, "num_heads is 2, but it must be a multiple of num_kv_heads = 3."),
    (
        {"positions": "rotary", "head_size": 5},
        "the heads are 5 wide, but rotary positions need an even width: set head_size.",
    ),
    (
        {"tied_embeddings": True, "task": "classification"},
        "tied_embeddings is true, but a classifier has no output layer over the vocabulary: set it to false.",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_VALUES, ids=lambda value: str(value)[:40])
def test_a_transformer_that_cannot_be_built_is_rejected(changes, sentence):
    with pytest.raises(MemprofError) as error:
        dataclasses.replace(TINY, **changes)
    assert str(error.value) == sentence


def test_an_mlp_that_cannot_be_built_is_rejected():
    with pytest.raises(MemprofError, match="num_classes is 0"):
        dataclasses.replace(MLP.presets["tiny"], num_classes=0)


def test_the_mlp_block_is_four_times_as_wide_unless_a_size_is_given():
    assert TINY.mlp_width == 128
    assert dataclasses.replace(TINY, mlp_size=40).mlp_width == 40
