"""galore: what is projected, on what, and when."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memprof.workloads.optimizers.galore import projected_shapes, scale_by_galore

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]


def matrix(seed: int, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """A matrix, or a stack of them, of that rank."""
    rng = np.random.default_rng(seed)
    *stack, rows, columns = shape
    return (rng.normal(size=(*stack, rows, rank)) @ rng.normal(size=(*stack, rank, columns))).astype(np.float32)


def as_params(gradient) -> dict[str, jax.Array]:
    return {"kernel": jnp.asarray(gradient)}


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("kernel", (64, 256), ((64, 16), (16, 256))),
        ("kernel", (256, 64), ((64, 16), (256, 16))),
        ("kernel", (32, 32), ((32, 8), (8, 32))),
        ("kernel", (12, 64, 256), ((12, 64, 16), (12, 16, 256))),
        ("kernel", (3, 100), None),
        ("kernel", (100,), None),
        ("bias", (12, 64), None),
        ("embedding", (512, 64), None),
    ],
    ids=["wide", "tall", "square", "stack", "too narrow", "vector", "stacked biases", "table"],
)
def test_kernels_alone_are_projected_along_their_shorter_side(name, shape, expected):
    assert projected_shapes((jax.tree_util.DictKey(name),), jax.ShapeDtypeStruct(shape, jnp.float32)) == expected


@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (3, 16, 24)], ids=["wide", "tall", "stack"])
def test_the_projection_spans_the_leading_singular_vectors(shape):
    gradient = matrix(0, shape, rank=16)
    transformation = scale_by_galore()
    _, state = transformation.update(as_params(gradient), transformation.init(as_params(gradient)))
    projection = np.asarray(state.projection["kernel"])
    gram = gradient @ gradient.swapaxes(-1, -2) if shape[-2] <= shape[-1] else gradient.swapaxes(-1, -2) @ gradient
    leading = np.linalg.eigh(gram)[1][..., -4:]  # eigenvalues ascend
    np.testing.assert_allclose(projection @ projection.swapaxes(-1, -2), leading @ leading.swapaxes(-1, -2), atol=2e-4)


@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (3, 16, 24)], ids=["wide", "tall", "stack"])
def test_the_step_is_that_of_adam_in_the_subspace(shape):
    """Adam's first step is the sign of what it sees. Projected back and forth it stays what it is."""
    gradient = matrix(1, shape, rank=16)
    transformation = scale_by_galore(scale=0.5)
    steps, state = transformation.update(as_params(gradient), transformation.init(as_params(gradient)))
    projection, step = np.asarray(state.projection["kernel"]), np.asarray(steps["kernel"])
    assert step.shape == shape
    if shape[-2] <= shape[-1]:
        seen, back = projection.swapaxes(-1, -2) @ gradient, projection.swapaxes(-1, -2) @ step
    else:
        seen, back = gradient @ projection, step @ projection
    np.testing.assert_allclose(back, 0.5 * np.sign(seen), atol=1e-3)
    assert np.linalg.matrix_rank(step, tol=1e-3).max() == 4


def test_a_gradient_of_low_rank_loses_nothing():
    """With all of the gradient in the subspace, the moments are Adam's of the projected gradient, and nothing else."""
    gradient = matrix(2, (16, 24), rank=4)
    transformation = scale_by_galore()
    _, state = transformation.update(as_params(gradient), transformation.init(as_params(gradient)))
    projection = np.asarray(state.projection["kernel"])
    seen = np.asarray(state.adam.mu["kernel"]) / 0.1
    np.testing.assert_allclose(projection @ seen, gradient, atol=1e-4)


def test_the_projection_is_kept_until_it_is_due_and_the_moments_beyond():
    transformation = scale_by_galore(refresh_interval=3)
    state = transformation.init(as_params(matrix(0, (8, 12), rank=8)))
    update = jax.jit(transformation.update)
    projections = []
    for step in range(7):
        before = state.adam.mu["kernel"]
        gradient = matrix(step, (8, 12), rank=8)
        _, state = update(as_params(gradient), state)
        projections.append(np.asarray(state.projection["kernel"]))
        seen = projections[-1].T @ gradient
        np.testing.assert_allclose(state.adam.mu["kernel"], 0.9 * before + 0.1 * seen, rtol=1e-4, atol=1e-5)
    changed = [not np.array_equal(first, second) for first, second in itertools.pairwise(projections)]
    assert changed == [False, False, True, False, False, True]


def test_each_layer_of_a_stack_is_treated_as_on_its_own():
    stack = matrix(3, (2, 8, 12), rank=8)
    transformation = scale_by_galore()
    together, _ = transformation.update(as_params(stack), transformation.init(as_params(stack)))
    for layer, gradient in enumerate(stack):
        alone, _ = transformation.update(as_params(gradient), transformation.init(as_params(gradient)))
        np.testing.assert_allclose(together["kernel"][layer], alone["kernel"], atol=1e-4)


def test_what_is_not_projected_is_adams():
    gradient = {"bias": jnp.linspace(-1, 1, 12), "embedding": jnp.asarray(matrix(4, (16, 8), rank=8))}
    ours, adam = scale_by_galore(), optax.scale_by_adam()
    steps, state = ours.update(gradient, ours.init(gradient))
    expected, _ = adam.update(gradient, adam.init(gradient))
    assert jax.tree.leaves(state.projection) == []
    for step, leaf in zip(jax.tree.leaves(steps), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(step, leaf)
