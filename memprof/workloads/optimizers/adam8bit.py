"""adam8bit: AdamW with both moments quantised to 8 bits, block by block.

The transformation is in `transformations/adam8bit.py`; this file holds what is known of it without jax.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from memprof.workloads.optimizer import Optimizer
from memprof.workloads.optimizer_state import ParamLeaf, StateLeaf, state_of
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax

BLOCK_SIZE: Final = 256
MIN_QUANTISED_SIZE: Final = 4096  # as published: smaller tensors are a small part of the memory, and the most fragile


def create(config: TrainConfig) -> optax.GradientTransformation:
    """Returns the optimizer. jax is imported here, not above, so that listing optimizers stays quick."""
    from memprof.workloads.transformations.adam8bit import adam8bit

    return adam8bit(config.learning_rate, weight_decay=config.weight_decay)


def _state(param: ParamLeaf) -> Iterable[StateLeaf]:
    if param.num_elements < MIN_QUANTISED_SIZE:
        return (StateLeaf(param.shape, "float32"),) * 2
    num_blocks = -(-param.num_elements // BLOCK_SIZE)
    codes = (StateLeaf(param.shape, dtype) for dtype in ("int8", "uint8"))
    return (*codes, *(StateLeaf((num_blocks,), "float32"),) * 2)


OPTIMIZER = Optimizer(
    name="adam8bit",
    keeps=f"two moments of 8 bits and a scale for each block of {BLOCK_SIZE}; "
    f"tensors of less than {MIN_QUANTISED_SIZE:,} elements in float32",
    state_cost="2.03",
    reference="Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861",
    decays_weights=True,
    state=state_of(_state, scalars=("int32",)),
    create=create,
    code="memprof.workloads.transformations.adam8bit.adam8bit(learning_rate, weight_decay=weight_decay)",
)
