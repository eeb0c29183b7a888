r"""GaLore: Adam on gradients that are projected to a subspace of lower rank.

For a matrix with gradient :math:`G` (m x n, m at most n), the projection :math:`P` consists of the leading r left
singular vectors of the gradient, recomputed every T updates. Adam sees the projected gradient, and its step is
projected back:

.. math::

    P &= U_{:, :r}, \quad U \Sigma V^\top = G_t \quad \text{if } t \bmod T = 0 \\
    R_t &= P^\top G_t \\
    u_t &= \alpha \, P \, \mathrm{Adam}(R_t)

A tall matrix is projected from the right in the same way. The state is mr numbers of the projection and 2nr of the
moments instead of 2mn. Vectors, embedding tables, and matrices that are too narrow are updated by plain Adam. In a
stack of layers each layer has its own projection. A new projection leaves the moments unchanged, as published.

memprof has its own version because optax's (from 0.2.7 on) takes only matrices: for layers that a scan stacks it would
keep the full moments.

Reference: Zhao et al. 2024, GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection, arXiv:2403.03507.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax

Tree = Any
KeyPath = tuple[Any, ...]
Shape = tuple[int, ...]
RANK_DIVISOR: Final = 4
_NOT_PROJECTED = optax.MaskedNode()  # an empty tree


class ScaleByGaloreState(NamedTuple):
    """The projections, and Adam's state of the projected gradients. Its trees have the structure of the parameters.

    Attributes:
        projection: `(..., shorter side, rank)` for each matrix, empty for the other parameters.
        adam: moments of the projected gradients' shapes, and the number of updates.
    """

    projection: Tree
    adam: optax.ScaleByAdamState


def galore(
    learning_rate: optax.ScalarOrSchedule, weight_decay: float = 0.0, refresh_interval: int = 200, scale: float = 0.25
) -> optax.GradientTransformation:
    """Adam that keeps 2 to 3 bytes of state per element of a matrix instead of 8.

    Args:
        learning_rate: a number, or a schedule of the number of updates.
        weight_decay: decoupled, times the learning rate, of all parameters.
        refresh_interval: number of updates between two projections.
        scale: factor of the steps of projected matrices, the published alpha.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"kernel": jnp.ones((64, 256))}
        >>> state = galore(1e-3).init(params)
        >>> state[0].projection["kernel"].shape, state[0].adam.mu["kernel"].shape
        ((64, 16), (16, 256))
    """
    return optax.chain(
        scale_by_galore(refresh_interval=refresh_interval, scale=scale),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def scale_by_galore(refresh_interval: int = 200, scale: float = 0.25) -> optax.GradientTransformation:
    """Return the stateful part of `galore`, which documents the arguments."""
    adam = optax.scale_by_adam()

    def init(params: optax.Params) -> ScaleByGaloreState:
        def zeros(path: KeyPath, param: jax.Array, part: int) -> Tree:
            shapes = projected_shapes(path, param)
            if shapes is None:
                return (_NOT_PROJECTED, param)[part]
            return jnp.zeros(shapes[part], param.dtype)

        projection, projected = (
            jax.tree_util.tree_map_with_path(lambda path, param, part=part: zeros(path, param, part), params)
            for part in range(2)
        )
        return ScaleByGaloreState(projection, adam.init(projected))

    def update(
        updates: optax.Updates, state: ScaleByGaloreState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, ScaleByGaloreState]:
        is_due = state.adam.count % refresh_interval == 0

        def refresh(gradient: jax.Array, projection: Tree) -> Tree:
            if isinstance(projection, optax.MaskedNode):
                return projection
            return jax.lax.cond(is_due, _leading_singular_vectors, lambda _, old: old, gradient, projection)

        def project(gradient: jax.Array, projection: Tree) -> jax.Array:
            if isinstance(projection, optax.MaskedNode):
                return gradient
            return _transposed(projection) @ gradient if _is_wide(gradient) else gradient @ projection

        def project_back(step: jax.Array, projection: Tree, gradient: jax.Array) -> jax.Array:
            if isinstance(projection, optax.MaskedNode):
                return step
            full = projection @ step if _is_wide(gradient) else step @ _transposed(projection)
            return (scale * full).astype(gradient.dtype)

        projection = jax.tree.map(refresh, updates, state.projection)
        projected = jax.tree.map(project, updates, projection)
        steps, adam_state = adam.update(projected, state.adam)
        return jax.tree.map(project_back, steps, projection, updates), ScaleByGaloreState(projection, adam_state)

    return optax.GradientTransformation(init, update)


def is_matrix(path: KeyPath, param: Any) -> bool:
    """Whether a parameter is a weight matrix in its last two axes; axes before these are a stack of layers.

    The shape is ambiguous: the biases of scanned layers also have two axes, and an embedding table has two axes but is
    not a linear map. So the name that Flax gives to weights decides.
    """
    return jax.tree_util.keystr(path[-1:], simple=True) == "kernel" and len(param.shape) >= 2


def projected_shapes(path: KeyPath, param: Any) -> tuple[Shape, Shape] | None:
    """Return the shapes of a parameter's projection and of its projected gradient; None if it is not projected.

    The shorter side is projected, to a quarter of its size: the ratio of the published 350M, 1B and 7B models.

    Args:
        path: the keys of the parameter, as `jax.tree_util.tree_map_with_path` passes them.
        param: an array or a `jax.ShapeDtypeStruct`.
    """
    if not is_matrix(path, param) or min(param.shape[-2:]) < RANK_DIVISOR:
        return None
    *stack, rows, columns = param.shape
    rank = min(rows, columns) // RANK_DIVISOR
    if rows <= columns:
        return (*stack, rows, rank), (*stack, rank, columns)
    return (*stack, columns, rank), (*stack, rows, rank)


def _leading_singular_vectors(gradient: jax.Array, projection: jax.Array) -> jax.Array:
    """Return the leading singular vectors of the shorter side, largest first, as many as the projection has columns."""
    rank = projection.shape[-1]
    left, _, right = jnp.linalg.svd(gradient.astype(jnp.float32), full_matrices=False)
    vectors = left[..., :rank] if _is_wide(gradient) else _transposed(right[..., :rank, :])
    return vectors.astype(projection.dtype)


def _is_wide(matrix: jax.Array) -> bool:
    return matrix.shape[-2] <= matrix.shape[-1]


def _transposed(matrix: jax.Array) -> jax.Array:
    return jnp.swapaxes(matrix, -1, -2)
