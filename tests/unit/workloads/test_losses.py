"""Cross-entropy by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.losses import CrossEntropy, mean

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Probabilities 3/4 and 1/4 in the first row, 1/2 and 1/2 in the second.
LOGITS = jnp.log(jnp.array([[3.0, 1.0], [1.0, 1.0]]))


def test_metrics_are_sums_with_their_counts():
    metrics = CrossEntropy()(LOGITS, {"labels": jnp.array([1, 0])})
    # The second row is a tie, and argmax takes the first of equals.
    np.testing.assert_allclose(metrics["loss"], (np.log(4) + np.log(2), 2), rtol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], (1, 2))
    np.testing.assert_allclose(mean(metrics["loss"]), np.log(8) / 2, rtol=1e-6)


def test_labels_that_do_not_count_are_left_out():
    batch = {"labels": jnp.array([1, 0]), "is_counted": jnp.array([False, True])}
    metrics = CrossEntropy(counted="is_counted")(LOGITS, batch)
    np.testing.assert_allclose(metrics["loss"], (np.log(2), 1), rtol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], (1, 1))


def test_nothing_that_counts_is_a_loss_of_zero():
    batch = {"labels": jnp.array([1, 0]), "is_counted": jnp.array([False, False])}
    assert float(mean(CrossEntropy(counted="is_counted")(LOGITS, batch)["loss"])) == 0


def test_bf16_logits_still_give_a_float32_loss():
    metrics = CrossEntropy()(LOGITS.astype(jnp.bfloat16), {"labels": jnp.array([1, 0])})
    assert {value.dtype for pair in metrics.values() for value in pair} == {jnp.dtype("float32")}
