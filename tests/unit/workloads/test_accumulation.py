"""Gradient accumulation by hand: parts that count differently many tokens, and loss scales that give up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.gradients import Evaluation, Scaling, accumulate, evaluate, new_scale

pytestmark = pytest.mark.usefixtures("quick_compiles")

KINDS = ["scan", "unrolled"]
# Four examples; the loss of each is weight x value, and only those that count do so.
BATCH = {"value": jnp.array([1.0, 2.0, 4.0, 8.0]), "counts": jnp.array([1.0, 1.0, 1.0, 0.0])}


def evaluate_part(params, part, number):
    def metrics(params):
        losses = params["weight"] * part["value"] * part["counts"]
        return {"loss": (jnp.sum(losses), jnp.sum(part["counts"]))}

    del number
    return evaluate(metrics, params, None)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_with_padding_give_the_gradient_of_the_whole(kind):
    params = {"weight": jnp.float32(3.0)}
    whole = evaluate_part(params, BATCH, 0)
    parts = accumulate(lambda part, number: evaluate_part(params, part, number), BATCH, 2, kind)
    # (1 + 2 + 4) / 3. The mean of the parts' means would be (3 / 2 + 4 / 1) / 2.
    np.testing.assert_allclose(whole.gradients["weight"], 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(parts.gradients["weight"], 7 / 3, rtol=1e-6)
    assert jax.tree.map(float, parts.metrics) == jax.tree.map(float, whole.metrics) == {"loss": (21.0, 3.0)}
    assert parts.scaling is None


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_added_up_in_float32(kind):
    params = {"weight": jnp.bfloat16(3.0)}
    parts = accumulate(lambda part, number: evaluate_part(params, part, number), BATCH, 4, kind)
    assert parts.gradients["weight"].dtype == jnp.float32


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_nothing_but_padding_has_no_gradient(kind):
    params, batch = {"weight": jnp.float32(3.0)}, {**BATCH, "counts": jnp.zeros(4)}
    parts = accumulate(lambda part, number: evaluate_part(params, part, number), batch, 2, kind)
    assert float(parts.gradients["weight"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_knows_its_number_and_its_examples(kind):
    def evaluate_part(part, number):
        seen = jnp.sum(part["value"]) * 10.0**number
        return Evaluation({"seen": seen}, {"loss": (seen, jnp.float32(1))}, None)

    total = accumulate(evaluate_part, BATCH, 2, kind)
    assert float(total.metrics["loss"][0]) == (1 + 2) + 10 * (4 + 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("finite", "scale"), [([True] * 3, 65536), ([True, False, True], 32768), ([False] * 3, 32768)])
def test_one_part_that_is_not_finite_lowers_the_scale_once(kind, finite, scale):
    batch = {"is_finite": jnp.array(finite), "value": jnp.ones(3)}

    def evaluate_part(part, number):
        del number
        is_finite, old = part["is_finite"][0], new_scale()
        next_scale = old.replace(
            scale=jnp.where(is_finite, old.scale, old.scale / 2), fin_steps=jnp.where(is_finite, 1, 0)
        )
        return Evaluation({"w": part["value"][0]}, {"loss": (part["value"][0],) * 2}, Scaling(next_scale, is_finite))

    scaling = accumulate(evaluate_part, batch, 3, kind).scaling
    assert scaling is not None
    assert (bool(scaling.is_finite), float(scaling.next_scale.scale)) == (all(finite), scale)
    assert int(scaling.next_scale.fin_steps) == int(all(finite))
