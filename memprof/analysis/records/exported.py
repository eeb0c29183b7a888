"""What an export came to. Neither JAX nor onnx is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """What a written model holds.

    Attributes:
        weight_bytes: of its weights and constants.
    """

    num_nodes: int
    num_inputs: int
    num_outputs: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How close the model's results are to JAX's.

    Attributes:
        engine: that ran the model.
        difference: the largest one of any output, as a share of the output's largest value.
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
    """A written model, and its comparison with JAX if one was made."""

    model: ExportedModel
    agreement: Agreement | None
