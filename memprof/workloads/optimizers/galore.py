"""galore: Adam in a subspace of each gradient that its leading singular vectors span.

The transformation is in `transformations/galore.py`; this file holds what is known of it without jax. It is ours, since
the one of optax (from 0.2.7 on) takes matrices alone: of layers that a scan stacks it would keep the full moments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from memprof.workloads.optimizer import Optimizer
from memprof.workloads.optimizer_state import ParamLeaf, Shape, StateLeaf, same, state_of
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax

RANK_DIVISOR: Final = 4


def projected_shapes(param: ParamLeaf) -> tuple[Shape, Shape] | None:
    """Returns the shapes of a parameter's projection and of its projected gradient; None where nothing is projected.

    The shorter side is projected, to a quarter of its size: the ratio of the published 350M, 1B and 7B models.
    """
    if not param.is_matrix or min(param.shape[-2:]) < RANK_DIVISOR:
        return None
    *stack, rows, columns = param.shape
    rank = min(rows, columns) // RANK_DIVISOR
    if rows <= columns:
        return (*stack, rows, rank), (*stack, rank, columns)
    return (*stack, columns, rank), (*stack, rows, rank)


def create(config: TrainConfig) -> optax.GradientTransformation:
    """Returns the optimizer. jax is imported here, not above, so that listing optimizers stays quick."""
    from memprof.workloads.transformations.galore import galore

    return galore(config.learning_rate, weight_decay=config.weight_decay)


def _state(param: ParamLeaf) -> Iterable[StateLeaf]:
    shapes = projected_shapes(param)
    if shapes is None:
        return (*same(param), *same(param))
    projection, projected = shapes
    return tuple(StateLeaf(shape, param.dtype) for shape in (projection, projected, projected))


OPTIMIZER = Optimizer(
    name="galore",
    keeps="two moments of the projected gradient and the projection, a quarter of the rank; other tensors two moments",
    state_cost="2 to 3 (kernels), 8 (others)",
    reference="Zhao et al. 2024, GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection, "
    "arXiv:2403.03507",
    decays_weights=True,
    state=state_of(_state, scalars=("int32",)),
    create=create,
    code="memprof.workloads.transformations.galore.galore(learning_rate, weight_decay=weight_decay)",
)
