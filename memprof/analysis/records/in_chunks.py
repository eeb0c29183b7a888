"""What of a differentiated function is computed in chunks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InChunks:
    """The parts of a step that are computed one chunk of rows after another, and again in the backward pass.

    Attributes:
        loss: in how many chunks the logits and the loss that is made of them; 1: whole.
        attention: in how many blocks of queries each attention; 1: whole.
    """

    loss: int = 1
    attention: int = 1
