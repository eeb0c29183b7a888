"""What the backward pass of a block needs, and what it takes to compute it or to keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Signature(NamedTuple):
    """An operation as a checkpoint policy sees it.

    Attributes:
        inputs: shape and dtype of each.
        dimension_numbers: of a matrix product or a convolution, as text; `None` as text for other primitives.
    """

    primitive: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    dimension_numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the forward pass of a block.

    Attributes:
        inputs: the operations of the block whose results it reads, by number; the block's own arguments are not there.
        size_bytes: of its results.
        seconds: to compute them again, at the peaks of the target.
        is_needed: the backward pass reads a result.
    """

    signature: Signature
    inputs: tuple[int, ...]
    size_bytes: int
    seconds: float
    is_needed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a step under a checkpoint: a layer, or the body of a scan.

    Attributes:
        operations: those that the backward pass needs or that such a one is made of, makers before users.
        count: how often the block runs in a step.
    """

    operations: tuple[Operation, ...]
    count: int
