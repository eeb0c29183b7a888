"""The sizes of the MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memprof.workloads.train_config import require_positive, require_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """Sizes of the classifier.

    Attributes:
        batch_size: number of examples in a step.
        input_size: number of features of an example.
        hidden_size: width of the hidden layer.
        num_classes: number of classes.
        dropout_rate: dropout rate of the hidden layer.
        phase: `inference` runs only the forward pass, without dropout.
    """

    batch_size: int
    input_size: int
    hidden_size: int
    num_classes: int
    dropout_rate: float = 0.1
    phase: Literal["training", "inference"] = "training"

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "input_size", "hidden_size", "num_classes")
        require_rates(self, "dropout_rate")

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """The sizes that tensor parallelism divides, by field."""
        return {"hidden_size": self.hidden_size}
