"""How a model is trained: the record that techniques change.

Fields that a technique owns (`compute_dtype`, `donate`) cannot be set by `--set`: their label must say that they are
on. The others are plain settings.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from memprof.workloads.checks import require, require_positive

ComputeDtype = Literal["float32", "bfloat16"]

_OWNED_BY_TECHNIQUE: Final = {"owned_by_technique": True}
_MAX_SEED: Final = 2**31 - 1  # `jax.random.PRNGKey` takes an int32 where 64-bit types are off, which is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything about the training step that is not the model.

    The defaults are the baseline: float32 throughout, nothing donated.

    Attributes:
        optimizer: a name from `registry.optimizers()`.
        learning_rate: constant over the steps.
        weight_decay: of the optimizers that have one.
        seed: of the parameters, of dropout and of the synthetic batches.
        compute_dtype: of matrix products and activations. Parameters, optimizer state, softmax, logits and loss stay
            float32.
        donate: whether the new state may reuse the buffers of the old one.
    """

    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    seed: int = 0
    compute_dtype: ComputeDtype = field(default="float32", metadata=_OWNED_BY_TECHNIQUE)
    donate: bool = field(default=False, metadata=_OWNED_BY_TECHNIQUE)

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}, but it must not be negative.")
        require(0 <= self.seed <= _MAX_SEED, f"seed is {self.seed}, but it must be between 0 and {_MAX_SEED}.")


def technique_fields() -> dict[str, Any]:
    """Returns the fields of `TrainConfig` that techniques own, each with its baseline value."""
    owned = (spec for spec in dataclasses.fields(TrainConfig) if spec.metadata == _OWNED_BY_TECHNIQUE)
    return {spec.name: spec.default for spec in owned}
