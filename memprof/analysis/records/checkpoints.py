"""What the backward pass of a block needs, what it takes to compute it or to keep it, and what is kept."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The operations of each block whose results are kept for the backward pass. The others are computed again.

    Attributes:
        kept: by the first blocks.
        num_first: how many blocks these are; None: all.
        kept_by_rest: by the blocks after them; None: these have no checkpoint.
    """

    kept: frozenset[Signature]
    num_first: int | None = None
    kept_by_rest: frozenset[Signature] | None = None

    def kept_by(self, number: int) -> frozenset[Signature] | None:
        """What the block with this number keeps; None: it has no checkpoint."""
        return self.kept if self.num_first is None or number < self.num_first else self.kept_by_rest
