"""Attention probabilities by hand, and their precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.models.transformer.attention import attention_probabilities

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_probabilities_are_the_scaled_softmax():
    # One head of size 4: q k / sqrt(4) gives the scores (2, 0) for the first query, (0, 0) for the second.
    query = jnp.array([[[[2.0, 0, 0, 0]], [[0.0, 0, 0, 0]]]])
    key = jnp.array([[[[2.0, 0, 0, 0]], [[0.0, 5, 0, 0]]]])
    first = np.exp(2) / (np.exp(2) + 1)
    expected = [[[[first, 1 - first], [0.5, 0.5]]]]
    np.testing.assert_allclose(attention_probabilities(query, key, None), expected, rtol=1e-6)


def test_masked_keys_get_no_probability_and_a_fully_masked_query_stays_finite():
    query, key = jnp.ones((1, 2, 1, 4)), jnp.ones((1, 3, 1, 4))
    mask = jnp.array([[True, False, True], [False, False, False]])
    expected = [[[[0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]]]]
    np.testing.assert_allclose(attention_probabilities(query, key, mask), expected, rtol=1e-6)


def test_softmax_is_float32_between_bfloat16_products():
    query = jax.ShapeDtypeStruct((1, 3, 2, 4), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(lambda q, k: attention_probabilities(q, k, None))(query, query)
    dtypes = {equation.primitive.name: equation.invars[0].aval.dtype for equation in jaxpr.eqns}
    assert dtypes["dot_general"] == jnp.bfloat16
    assert dtypes["exp"] == jnp.float32
    assert jaxpr.out_avals[0].dtype == jnp.bfloat16
