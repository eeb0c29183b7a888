"""The result of an export. Reading it needs neither JAX nor onnx."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """The contents of an exported model.

    Attributes:
        weight_bytes: the size of its weights and constants.
    """

    num_nodes: int
    num_inputs: int
    num_outputs: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How close the model's results are to JAX's.

    Attributes:
        engine: the engine that ran the model.
        difference: the largest difference in any output, relative to the output's largest value.
    """

    engine: str
    difference: float
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An exported model, and its comparison with JAX, if any."""

    model: ExportedModel
    agreement: Agreement | None
