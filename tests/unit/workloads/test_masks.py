"""The masks against tables written by hand: rows are queries, columns keys."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from memprof.workloads.models.transformer.attention import causal_mask, combine_masks, custom_mask, padding_mask

T, F = True, False


def table(mask, batch: int, length: int) -> list[list[bool]]:
    return np.broadcast_to(np.asarray(mask), (2, 3, length, length))[batch, 0].tolist()


IS_REAL = jnp.array([[T, T, T], [T, T, F]])
ALLOWED = jnp.array([[[T, F, F], [F, T, T], [F, T, T]], [[T, T, T], [T, T, T], [T, T, T]]])


def test_causal_mask_allows_a_token_itself_and_the_earlier_ones():
    assert table(causal_mask(3), 0, 3) == [[T, F, F], [T, T, F], [T, T, T]]


def test_padding_mask_hides_padding_from_every_query():
    assert table(padding_mask(IS_REAL), 0, 3) == [[T, T, T], [T, T, T], [T, T, T]]
    assert table(padding_mask(IS_REAL), 1, 3) == [[T, T, F], [T, T, F], [T, T, F]]


def test_custom_mask_is_the_same_for_each_head():
    mask = np.broadcast_to(np.asarray(custom_mask(ALLOWED)), (2, 3, 3, 3))
    assert (mask == np.asarray(ALLOWED)[:, None]).all()


def test_combined_masks_allow_what_all_of_them_allow():
    mask = combine_masks(causal_mask(3), padding_mask(IS_REAL), custom_mask(ALLOWED))
    assert table(mask, 0, 3) == [[T, F, F], [F, T, F], [F, T, T]]
    assert table(mask, 1, 3) == [[T, F, F], [T, T, F], [T, T, F]]


def test_masks_that_are_not_given_are_left_out():
    assert table(combine_masks(None, causal_mask(2), None), 0, 2) == [[T, F], [T, T]]
    assert combine_masks(None, None) is None
